"""The planner beside real things: a module of the reader's own (``module_run``, ``counted``), one
rank of a thousand with fake tensors (``fake_run``, with ``decoder_run`` and ``tensors``), and this
machine's own ranks (``here_run``); blocks whose kept bytes a reader counts (``blocks_run``)."""
