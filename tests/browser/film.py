"""The README's moving picture: a real JupyterLab in a real Chromium, in which three cells are run.

cd tests && python -m browser.film [FILE]      write data/readme/film.gif, or FILE

The window is photographed while cells are run, ranks work and pictures come; its menus are hidden,
and nothing is drawn into it. What a reader would only wait for is shown for LONGEST_MS at most, so
the film is no measurement: the times in its pictures are.
"""

import argparse
import io
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from browser import gallery
from browser.lab import Page, browse, browser, serve
from PIL import Image, ImageChops

ROOT = Path(__file__).resolve().parents[2]
FILM = ROOT / "data" / "readme" / "film.gif"
WINDOW_PX = {"width": 1120, "height": 700}
NUM_COLOURS = 96
LONGEST_MS = 900
LAST_MS = 4000
CELLS = (
    'import labkit as lab\nfrom labkit import pipeline\n\nlab.begin("en")',
    'step = pipeline.Step(schedule="1f1b", ranks=4, microbatches=8)\nstep.compare()',
    "step.board()",
)
HIDDEN = """
#jp-top-panel, #jp-menu-panel, #jp-bottom-panel, .jp-SideBar, .jp-Toolbar, .lm-TabBar,
.jp-Notebook-footer, .labkit-live + img {display: none !important}
"""
IDLE = """() => ![...document.querySelectorAll('.jp-InputPrompt')]
  .some(prompt => prompt.textContent.includes('*'))"""
BOARD = ".jp-OutputArea-output:has(button:has-text('Run it on real ranks'))"


@dataclass
class Film:
    """The frames so far, each with the time for which it is shown."""

    lab: Page
    """what is photographed"""
    place: dict[str, float]
    """where in the window: x, y, width, height"""
    frames: list[Image.Image] = field(default_factory=list)
    """in order"""
    shown_ms: list[float] = field(default_factory=list)
    """how long each stays"""

    def take(self, seconds: float) -> None:
        """Photographs the window again and again for some seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            self._keep(self.lab.page.screenshot(clip=self.place))
            self.lab.page.wait_for_timeout(60)
            self.shown_ms[-1] += 1000 * (time.monotonic() - began)

    def until(self, script: str, most_s: float = 60) -> None:
        """Photographs until a script of the page says yes."""
        end = time.monotonic() + most_s
        before = len(self.frames)
        while not self.lab.page.evaluate(script):
            if time.monotonic() > end:
                raise TimeoutError(f"not within {most_s:.0f} s: {script}")
            self.take(0.1)
        for place in range(before, len(self.frames)):
            self.shown_ms[place] = min(LONGEST_MS, self.shown_ms[place])

    def _keep(self, png: bytes) -> None:
        frame = Image.open(io.BytesIO(png)).convert("RGB")
        if self.frames and ImageChops.difference(frame, self.frames[-1]).getbbox() is None:
            return
        self.frames.append(frame)
        self.shown_ms.append(0.0)

    def write(self, path: Path) -> None:
        """As a GIF with one palette for all frames, so that only what changed is kept of each."""
        width, height = self.frames[0].size
        sample = Image.new("RGB", (width, len(self.frames) * height))
        for place, frame in enumerate(self.frames):
            sample.paste(frame, (0, place * height))
        palette = sample.quantize(NUM_COLOURS, dither=Image.Dither.NONE)
        shown = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in self.frames]
        durations = [round(max(40, each)) for each in self.shown_ms]
        durations[-1] = LAST_MS
        path.parent.mkdir(parents=True, exist_ok=True)
        shown[0].save(
            path, save_all=True, append_images=shown[1:], duration=durations, loop=0, optimize=True
        )


def play(lab: Page) -> Film:
    """Runs the cells one after another, then turns the board by its controls."""
    page = lab.page
    page.set_viewport_size(WINDOW_PX)
    page.add_style_tag(content=HIDDEN)
    page.evaluate("window.dispatchEvent(new Event('resize'))")
    lab.command("notebook:move-cursor-up")
    page.wait_for_timeout(800)
    film = Film(lab, page.locator(".jp-WindowedPanel-outer").first.bounding_box())
    film.take(0.8)
    for place in range(len(CELLS) - 1):
        _run(film)
        _scroll(film, place)
    film.take(2.5)
    _run(film)
    page.locator(f"{BOARD} svg").first.wait_for()
    _scroll(film, len(CELLS) - 1)
    film.take(1.0)
    board = page.locator(BOARD).first
    for schedule in ("GPipe", "Interleaved 1F1B", "ZBV"):
        board.locator("select").first.select_option(schedule)
        film.take(1.2)
    return film


def _run(film: Film) -> None:
    """Runs the chosen cell and films until the kernel is idle."""
    film.lab.command("notebook:run-cell-and-select-next")
    film.take(0.3)
    film.until(IDLE)
    film.take(0.5)


def _scroll(film: Film, cell: int) -> None:
    """Brings a cell to the top of the window."""
    film.lab.page.evaluate(
        "place => document.querySelectorAll('.jp-Cell')[place].scrollIntoView()", cell
    )
    film.take(0.3)


def main() -> None:
    """Films and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=FILM)
    path = parser.parse_args().file
    with tempfile.TemporaryDirectory() as folder:
        notebook = gallery.notebook(Path(folder), *CELLS)
        with (
            serve(notebook) as server,
            browser() as running,
            browse(running, server, notebook.name) as lab,
        ):
            film = play(lab)
    film.write(path)
    seconds = sum(film.shown_ms) / 1000
    size = path.stat().st_size
    print(f"{path}: {len(film.frames)} frames of {seconds:.0f} s, {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
