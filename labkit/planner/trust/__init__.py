"""How far to trust a plan: published runs as ``rows``, a ``fit`` of a stack's constants on some,
and ``validate`` for the others; ``judge`` has the errors and the order, ``report`` prints them.
"""
