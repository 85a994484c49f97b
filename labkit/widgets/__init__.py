"""Controls around pictures: ``show`` a picture, ``timeline`` of any run, and the boards of all
subjects by name.

Importing it in a notebook also gives every launch that takes longer than a second its live panel.
"""

from collections.abc import Callable

from labkit.widgets import gallery
from labkit.widgets.live import install
from labkit.widgets.live import report as report
from labkit.widgets.picture import show as show
from labkit.widgets.trace import trace as trace
from labkit.widgets.usage import timeline as timeline

_KIT = ["report", "show", "timeline", "trace"]


def __getattr__(name: str) -> Callable | list[str]:
    """A board, from the subject that it belongs to; ``__all__`` names what there is."""
    if name == "__all__":
        return sorted([*_KIT, *gallery.boards()])
    if not name.startswith("_") and name in gallery.boards():
        return gallery.boards()[name]
    raise AttributeError(
        f"labkit.widgets has no {name!r}; it has {', '.join(sorted([*_KIT, *gallery.boards()]))}"
    )


def __dir__() -> list[str]:
    return __getattr__("__all__")


install()
