"""Data to drawing: a ``Scene`` or a ``Sketch`` is laid out once, and painted as SVG, PNG and
text."""
