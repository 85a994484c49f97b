"""The input pipeline: a step that waits for its data, and one that does not. ``feeding`` is the
experiment, ``feeding_run`` a DataLoader with workers on real ranks."""
