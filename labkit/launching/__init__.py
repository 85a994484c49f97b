"""Real ranks: one process each, forked from a zygote, watched to their end, and judged.

``launcher`` asks, ``zygote_client`` starts ``zygote``, which forks ``worker``s; a ``job`` watches
them. What came of it is a ``run``, or a ``verdict`` that ``diagnosis`` has proved from each rank's
``outcome``.
"""
