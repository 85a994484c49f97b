"""Real ranks: one process each, forked from a zygote, watched to their end, and judged.

``launcher`` writes a ``request``, the function in it by ``pickling``. ``zygote_client`` starts the
``zygote``, which forks a ``worker`` for each rank; in it the function finds ``rank.current()``. A
``job`` listens to their ``messages``, keeps a ``rank_state`` for each, and comes to a conclusion: a
``run`` (on disk: ``saved``), or a ``verdict`` that ``diagnosis`` has proved from each rank's
``outcome``, as far as it could tell by ``introspect``. ``script`` launches by the command that
users type (``script_command``).
"""
