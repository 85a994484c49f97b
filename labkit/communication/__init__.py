"""Communication made cheaper, and hidden. Chapter 11.

What the chapter shows lives in the subjects that it is about: plans, networks and rings in
``labkit.collectives``, buckets, overlap and communication hooks in ``labkit.data_parallel``. Here
are its exercises, ``check`` and ``hints.json``: accumulate gradients without extra all-reduces,
compress them with error feedback, order a ring for a network, choose by measuring.
"""
