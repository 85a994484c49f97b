"""Communication made cheaper, and hidden. Chapter 11.

What the chapter shows lives in the subjects that it is about: plans, networks and rings in
``labkit.collectives``, buckets and overlap in ``labkit.data_parallel``. ``compressed_run`` trains
under a communication hook and counts what it sends. The rest are exercises, ``check`` and
``hints.json`` (``spare_hints.json`` for those on no page): accumulate gradients without extra
all-reduces, compress them with error feedback, find the link up to which
that pays, order a ring for a network, choose by measuring.
"""
