"""Laws of the PNG: the share of every kind can be read back from its pixels; no global state; never
a missing glyph."""

import io
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from drawn import busy, predicted, shares
from matplotlib import font_manager, image

from labkit.pictures import scene
from labkit.pictures.painters import layout, mpl
from labkit.pictures.style import IDLE, shade, style


def channels(colour: str) -> list[int]:
    """Red, green and blue of "#rrggbb"."""
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def pixel_shares(drawn: scene.Scene) -> dict[str, float]:
    """The share of each kind along a line through the upper part of every row, above the letters,
    by nearest colour."""
    pixels = 255 * image.imread(io.BytesIO(mpl.png(drawn, dpi=200)))[:, :, :3]
    num_chunks = int(drawn.chunk.max()) + 1
    busy = [kind for kind in drawn.kinds if kind != IDLE]
    looks = [
        (kind, shade(style(kind).colour, chunk, num_chunks))
        for kind, chunk in itertools.product(busy, range(num_chunks))
    ]
    looks += [(IDLE, colour) for colour in ("#f2f2f3", "#a6a9ad", "#d0d2d4", "#e4e5e7")]
    plain = np.array([channels(colour) for _, colour in looks])
    edged = 0.6 * plain + 0.4 * np.array(channels(mpl.INK))  # a hairline at a box's left edge
    colours = np.concatenate([plain, edged])
    looks = 2 * looks
    scale_y = pixels.shape[0] / layout.height_px(drawn)
    left, right = (
        round((0.012 + 0.976 * drawn.x_px(at) / scene.WIDTH_PX) * pixels.shape[1])
        for at in (drawn.start_us, drawn.end_us)
    )
    lines = np.stack(
        [
            pixels[round((row.top_px + 0.14 * row.height_px) * scale_y), left:right]
            for row in drawn.rows
        ]
    )
    nearest = ((lines[:, :, None, :] - colours) ** 2).sum(axis=3).argmin(axis=2)
    kinds = np.array([kind for kind, _ in looks])[nearest]
    return {kind: float((kinds == kind).mean()) for kind in drawn.kinds}


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b"])
def test_shares_of_every_kind_come_back_from_the_pixels(name: str) -> None:
    drawn = scene.timeline(predicted(name))
    found = pixel_shares(drawn)
    true = shares(drawn)
    assert all(found[kind] == pytest.approx(true[kind], abs=0.02) for kind in drawn.kinds), (
        found,
        true,
    )


def test_level_of_detail_keeps_the_shares_in_the_pixels() -> None:
    drawn = scene.timeline(busy(8_000, num_ranks=4))
    found = pixel_shares(drawn)
    assert len(drawn.kinds) == 4
    assert sum(abs(found[kind] - share) for kind, share in shares(drawn).items()) < 0.04, (
        found,
        shares(drawn),
    )


def test_figure_says_the_same_numbers_as_the_scene() -> None:
    drawn = scene.timeline(predicted(), title="GPipe")
    said = [text.get_text() for text in mpl.figure(drawn).axes[0].texts]
    for words in (
        drawn.heading,
        drawn.badge,
        drawn.side_name,
        *itertools.chain.from_iterable(drawn.numbers),
    ):
        assert words in said
    assert said.count("8") == 1 + 4, "in flight, in the title and at every row"


def test_no_font_for_chinese_means_english(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = scene.timeline(predicted(), language="zh")
    monkeypatch.setattr(mpl, "chinese_font", lambda: None)
    said = " ".join(text.get_text() for text in mpl.figure(drawn).axes[0].texts)
    assert "bubble" in said and all(ord(character) < 0x2E80 for character in said)


def test_a_font_that_was_installed_after_matplotlibs_list_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A font of another name, with the file's name of one with Chinese, stands for it."""
    manager = font_manager.fontManager
    dejavu = [font for font in manager.ttflist if font.name == "DejaVu Sans"]
    other = next(font for font in manager.ttflist if font.name == "DejaVu Serif")
    late = tmp_path / "NotoSansCJK-Regular.ttf"
    shutil.copy(other.fname, late)
    monkeypatch.setattr(manager, "ttflist", dejavu)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(late)])
    monkeypatch.setattr(mpl, "_CHINESE", ("Noto Sans CJK SC", "DejaVu Serif"))
    assert mpl.chinese_font.__wrapped__() == "DejaVu Serif"
    assert str(late) in [font.fname for font in manager.ttflist]
    monkeypatch.setattr(manager, "ttflist", dejavu[:1])
    monkeypatch.setattr(
        font_manager, "findSystemFonts", lambda: [str(late.rename(tmp_path / "Another.ttf"))]
    )
    assert mpl.chinese_font.__wrapped__() is None


def test_saved_files_are_what_their_names_say(tmp_path) -> None:
    drawn = scene.compare(predicted(), predicted(message_us=100.0))
    for name, magic in (("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("deep/a.svg", b"<?xml")):
        assert mpl.save(drawn, tmp_path / name).read_bytes().startswith(magic)
    assert mpl.png(drawn) == mpl.png(drawn)


def test_pyplot_is_never_imported() -> None:
    code = (
        "import sys; from labkit.pictures.painters import mpl; "
        "assert not {'matplotlib.pyplot', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
