"""Controls around pictures: ``show`` a picture, ``timeline`` of any run, and the boards of all
subjects by name.

Importing it in a notebook also gives every launch that takes longer than a second its live panel.
"""

from collections.abc import Callable

from labkit.widgets import gallery
from labkit.widgets.live import install, report
from labkit.widgets.picture import show
from labkit.widgets.trace import trace
from labkit.widgets.usage import timeline

__all__ = ["report", "show", "timeline", "trace"]
__all__ += gallery.homes()


def __getattr__(name: str) -> Callable:
    """A board, imported from the subject that it belongs to when it is first asked for."""
    if name in gallery.homes():
        return gallery.board(name)
    raise AttributeError(f"labkit.widgets has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)


install()
