"""How well words and lines stand out from what lies behind them, by the ratio of WCAG 2.1."""

import io
import re
from collections.abc import Sequence

import matplotlib.image
import numpy as np

COLOURS = """svg => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  let back = svg, shade = [0, 0, 0, 0];
  while (back && !shade[3]) {
    const found = parse(getComputedStyle(back).backgroundColor);
    shade = found.length === 3 ? [...found, 1] : found;
    back = back.parentElement;
  }
  return [parse(getComputedStyle(svg).fill).slice(0, 3), shade.slice(0, 3)];
}"""
WORDS = """svg => {
  const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
  const found = [];
  const walk = document.createTreeWalker(svg, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const parent = node.parentElement, look = getComputedStyle(parent);
    const range = document.createRange();
    if (!parent.closest('text') || !node.data.trim()) continue;
    range.selectNodeContents(node);
    const at = range.getBoundingClientRect();
    let opacity = Number(look.fillOpacity);
    for (let each = parent; each !== svg; each = each.parentElement) {
      opacity *= Number(getComputedStyle(each).opacity);
    }
    found.push([node.data, at.x - box.x, at.y - box.y, at.width, at.height, look.fill, opacity,
                scale * parseFloat(look.fontSize), Number(look.fontWeight)]);
  }
  return found;
}"""


LARGE_PX, LARGE_BOLD_PX = 24, 18.66
"""From these sizes on a text counts as large."""


def luminance(colour: Sequence[float]) -> float:
    """The relative luminance of red, green and blue from 0 to 255."""
    share = np.array(colour) / 255
    linear = np.where(share <= 0.03928, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(colour: Sequence[float], background: Sequence[float]) -> float:
    """The contrast ratio of WCAG 2.1."""
    dark, light = sorted((luminance(colour), luminance(background)))
    return (light + 0.05) / (dark + 0.05)


def weakest(words: list, picture: np.ndarray) -> float:
    """The least contrast of a text, a row of WORDS, with any colour that lies behind it.

    ``picture``: the pixels without the text.
    """
    _, x, y, width, height, fill, opacity, *_ = words
    lines = slice(max(0, round(y)), round(y + height))
    columns = slice(max(0, round(x)), round(x + width))
    shades = np.unique(picture[lines, columns].reshape(-1, 3).round(), axis=0)
    numbers = [float(number) for number in re.findall(r"[\d.]+", fill)]
    colour = np.array(numbers[:3])
    alpha = opacity * (numbers[3] if len(numbers) > 3 else 1.0)
    ratios = [contrast(alpha * colour + (1 - alpha) * shade, shade) for shade in shades]
    return min(ratios, default=np.inf)


def needed(words: list) -> float:
    """The contrast that a text needs, a row of WORDS."""
    *_, size_px, weight = words
    large = size_px >= LARGE_PX or (size_px >= LARGE_BOLD_PX and weight >= 700)
    return 3.0 if large else 4.5


def unreadable(page: object, picture: object) -> list[tuple[str, float]]:
    """Texts of an SVG whose contrast in Chromium's pixels is too low: under 4.5, or under 3 where
    they are large."""
    hidden = page.add_style_tag(content=".jp-OutputArea-output svg text { visibility: hidden }")
    pixels = 255 * matplotlib.image.imread(io.BytesIO(picture.screenshot()))[..., :3]
    hidden.evaluate("style => style.remove()")
    rows = [(words, weakest(words, pixels)) for words in picture.evaluate(WORDS)]
    assert rows
    return [(words[0], round(ratio, 2)) for words, ratio in rows if ratio < needed(words)]
