"""``python -m labkit classroom board FOLDER``: how far a room is, for who teaches it, as a live
page on this machine."""

import argparse
import time
from pathlib import Path

from labkit import words
from labkit.check.shared.content import VARIABLE
from labkit.classroom import hub_run, room_picture, room_run
from labkit.classroom.page_run import Site
from labkit.classroom.room import Room, room
from labkit.words import say


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which folder, and what is to be done with it."""
    parser.add_argument("folder", type=Path, help=f"the folder that {VARIABLE} names")
    parser.add_argument("--make", action="store_true", help="make the folder, and do no more")
    parser.add_argument("--port", type=int, default=0, help="of the page (default: a free one)")
    parser.add_argument("--once", type=Path, metavar="FILE", help="write the page to a file")
    parser.add_argument(
        "--per-account",
        type=int,
        metavar="N",
        help="how many learners of one account count (default: "
        f"{room_run.PER_ACCOUNT} where there are several accounts, else all)",
    )
    parser.add_argument(
        "--in",
        dest="written_in",
        choices=words.LANGUAGES,
        help="the language of the page (default: what --language says)",
    )


def main(chosen: argparse.Namespace) -> int:
    """Makes the folder, or writes the page, or serves it until it is stopped. Raises ValueError for
    a folder or a port that can't be used."""
    words.use(chosen.written_in or chosen.language)
    if chosen.make:
        return _make(chosen.folder)
    folder = room_run.Folder(chosen.folder, chosen.per_account)
    if chosen.once:
        chosen.once.write_text(_page(folder, live=False), encoding="utf-8")
        print(chosen.once)
        return 0
    with _site(folder, chosen.port) as site:
        print(say("The board is at {address}", address=site.address))
        print(say("It is for you alone: who has this address sees it. Ctrl-C ends it."), flush=True)
        site.serve_forever()
    return 0


def _site(folder: room_run.Folder, port: int) -> Site:
    def make() -> str:
        return _page(folder, live=True)

    try:
        return Site(make, room_picture.content_policy(), port)
    except (OSError, OverflowError) as error:
        raise ValueError(f"port {port} can't be had ({error}). Name another, or 0") from None


def _make(folder: Path) -> int:
    room_run.make(folder)
    whole = folder.resolve()
    if whole.name == hub_run.BOARD and (whole.parent / hub_run.CONFIG).is_file():
        print(say("The folder is made. The hub tells it to everybody from its next start on."))
        return 0
    print(say("The folder is made. Put this into everybody's environment:"))
    print(f"    {VARIABLE}={whole}")
    if closed := room_run.closed_to_others(whole):
        print(
            say(
                "Other accounts can't reach it: {folder} is closed to them. Open that with "
                "chmod o+x, or make the board's folder elsewhere.",
                folder=closed,
            )
        )
    return 0


def _page(folder: room_run.Folder, *, live: bool) -> str:
    now_s = time.time()
    return room_picture.page(_room(folder, now_s), now_s, live=live)


def _room(folder: room_run.Folder, now_s: float) -> Room:
    found = folder.read()
    return room(found.learners, now_s, left=found.left, crowded=found.crowded)
