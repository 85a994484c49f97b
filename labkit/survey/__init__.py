"""The survey: what this machine does with the course's headline experiments, in minutes, beside
what theory says and what was recorded elsewhere: ``python -m labkit measure``.

``trials`` lists what is run, part by part; ``readings`` takes the numbers out of each run;
``summary`` is what is kept of them all. ``run`` takes the trials within their time and saves every
run, ``exchange_run`` times collectives, ``device_run`` one device alone. ``picture`` draws a part,
``report_picture`` puts all of it on one page; ``command`` is what the terminal calls.
"""
