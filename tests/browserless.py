"""The kernel's half of a widget without a browser: what it is told, and what it tells."""

import threading


def settle(timeout_s=20):
    for thread in threading.enumerate():
        if thread.name == "labkit-draw":
            thread.join(timeout_s)


def from_browser(widget, **state):
    """What the kernel gets when the browser has changed a widget."""
    widget._handle_msg(
        {
            "content": {"data": {"method": "update", "state": state, "buffer_paths": []}},
            "buffers": [],
        }
    )


def pictures_sent(board, sent):
    pages = board.book.pages
    return [pages.index(widget) for widget, traits in sent if widget in pages and "value" in traits]
