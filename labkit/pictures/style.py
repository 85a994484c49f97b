"""How kinds of work look and what they are called, in English and Chinese: the words and colours of
every picture."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from labkit.collectives.algorithms import TITLES
from labkit.units import check_whole


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one kind of work looks: a colour and, for eyes or printers that do not see it, a letter
    and a hatch."""

    letter: str
    """one character, different for every kind"""
    colour: str
    """"#rrggbb", readable under dark ink, on white and on near-black; "" follows the text's
    colour"""
    hatch: str
    """a matplotlib hatch character, or "" for plain"""
    words: dict[str, str]
    """its name in each language"""


def _kind(letter: str, colour: str, hatch: str, en: str, zh: str) -> Kind:
    return Kind(letter=letter, colour=colour, hatch=hatch, words={"en": en, "zh": zh})


IDLE = "idle"
KINDS = {
    "F": _kind("F", "#4f9fe3", "", "forward", "前向"),
    "B": _kind("B", "#f2954b", "", "backward", "反向"),
    "I": _kind("I", "#f6cf65", "\\", "backward for inputs", "对输入的反向"),
    "W": _kind("W", "#43b08a", ".", "backward for weights", "对权重的反向"),
    "forward": _kind("→", "#4f9fe3", "", "forward", "前向"),
    "backward": _kind("←", "#f2954b", "", "backward", "反向"),
    "compute": _kind("C", "#4f9fe3", "", "compute", "计算"),
    "optimizer": _kind("O", "#43b08a", ".", "optimizer", "优化器"),
    "send": _kind("s", "#cf8fc2", "", "send", "发送"),
    "recv": _kind("r", "#9a8fdc", "\\", "receive", "接收"),
    "all_reduce": _kind("a", "#e0788f", "x", "all-reduce", "all-reduce"),
    "all_gather": _kind("g", "#bfa45f", "|", "all-gather", "all-gather"),
    "reduce_scatter": _kind("e", "#95b552", "-", "reduce-scatter", "reduce-scatter"),
    "broadcast": _kind("b", "#6fb7b7", ".", "broadcast", "broadcast"),
    "barrier": _kind("|", "#a3a8b0", "", "barrier", "同步点"),
    "wait": _kind("w", "#a3a8b0", "+", "wait", "等待"),
    IDLE: _kind(".", "", "/", "idle (bubble)", "空闲（气泡）"),
}
CYCLE = tuple(
    (colour, hatch)
    for hatch in ("", "/")
    for colour in (
        "#4f9fe3",
        "#f2954b",
        "#43b08a",
        "#cf8fc2",
        "#bfa45f",
        "#9a8fdc",
        "#e0788f",
        "#f6cf65",
    )
)
"""(colour, hatch) of things that are counted, not named: chunks, lines, bars; sixteen of them"""
_WORDS = (
    ("comma", ", ", "，"),
    ("colon", ": ", "："),
    ("stop", "{}.", "{}。"),
    ("badged", "{} ({})", "{}（{}）"),
    ("timeline", "Timeline", "时间线"),
    ("compare", "Predicted and measured", "预测与实测"),
    ("predicted", "Predicted", "预测"),
    ("measured", "measured", "实测"),
    ("simulated", "simulated", "模拟"),
    ("recorded", "recorded", "录制"),
    ("computed", "computed", "计算值"),
    ("paced", "paced", "定速"),
    ("paced links", "paced links", "定速链路"),
    ("overran", "overran", "超出定速"),
    ("bubble", "bubble", "气泡"),
    ("of", "{} of total time", "占总时间 {}"),
    ("span", "span", "总时长"),
    ("in_flight", "peak in flight", "激活峰值"),
    ("hidden", "communication hidden", "被掩盖的通信"),
    ("difference", "difference", "相差"),
    ("points", "{} points", "{} 个百分点"),
    ("busy", "busy", "忙碌"),
    ("compute", "compute", "计算"),
    ("idle", "idle", "空闲"),
    ("share", "idle share", "空闲占比"),
    ("comm", "communication", "通信"),
    ("chunk", "lighter: later stage of the rank", "较浅：该 rank 靠后的 stage"),
    ("nothing", "Nothing to show: no spans.", "没有可显示的内容。"),
    ("table", "The same as a table", "同样内容的表格"),
    ("busiest", "sent by the busiest rank", "最忙的 rank 发送"),
    ("bytes", "bytes", "字节"),
    (
        "summary_comm",
        "{ranks} ranks, {span}, {badge}: rank {sender} sends most, {bytes}.",
        "{ranks} 个 rank，{span}，{badge}：rank {sender} 发送最多，{bytes}。",
    ),
    ("plan", "{}: {}, {} ranks", "{}：{}，{} 个 rank"),
    ("step", "step", "步骤"),
    ("of_steps", "{} of {}", "{} / {}"),
    ("nothing_sent", "nothing has been sent yet", "还没有发送任何东西"),
    ("bound", "lower bound", "下界"),
    ("time", "time", "用时"),
    ("add", "+ added to the receiver's", "+ 与接收方相加"),
    ("copy", "copied", "复制"),
    (
        "parts",
        "{0}/{1}: holds the parts of {0} of {1} ranks",
        "{0}/{1}：已含 {1} 个 rank 中 {0} 个的贡献",
    ),
    ("changed", "changed in this step", "本步改变"),
    ("whole", "whole chunks", "完整的块"),
    ("chunk_n", "chunk {}", "块 {}"),
    ("peer", "to, from {}", "发往/来自 {}"),
    ("out_in", "out in", "发 收"),
    ("shared", ", one wire for all", "，共用一条线路"),
    ("stated", "stated", "给定"),
    ("drawn", "drawn", "照原图"),
    ("network", "{} ranks and their links", "{} 个 rank 与它们的链路"),
    ("islands", "islands", "岛"),
    ("ring_order", "ring", "环"),
    ("machine", "This machine", "本机"),
    ("reported", "as the system says", "系统所报"),
    ("cores", "cores", "核心"),
    ("threads", "hardware threads", "硬件线程"),
    ("memory", "memory", "内存"),
    ("usable", "usable at once", "可同时使用"),
    ("node", "NUMA node {}: {}", "NUMA 节点 {}：{}"),
    ("one_core", "threads of one core", "同一核心的线程"),
    ("one_cache", "one colour: one third-level cache", "同色：共享三级缓存"),
    ("NV", "NVLinks, how many", "NVLink，条数"),
    ("PIX", "at most one PCIe bridge", "至多一个 PCIe 桥"),
    ("PXB", "several PCIe bridges", "多个 PCIe 桥"),
    ("PHB", "PCIe and a CPU's host bridge", "PCIe 与 CPU 主桥"),
    ("NODE", "host bridges of one NUMA node", "同一 NUMA 节点的主桥"),
    ("SYS", "between NUMA nodes", "跨 NUMA 节点"),
    ("Parameter server", "Parameter server", "参数服务器"),
    ("Ring", "Ring", "环"),
    ("Tree", "Tree", "树"),
    ("Double binary tree", "Double binary tree", "双二叉树"),
    ("Hierarchical", "Hierarchical", "分层"),
    ("Star", "Star", "星形"),
    ("Pairwise", "Pairwise", "成对"),
    ("Direct", "Direct", "直接"),
    ("Send and receive", "Send and receive", "发送与接收"),
    (
        "summary",
        "{ranks} ranks, {span}, {badge}: {bubble} of the ranks' time is idle, most on rank "
        "{worst} ({most}).",
        "{ranks} 个 rank，{span}，{badge}：空闲占 {bubble}，rank {worst} 最多（{most}）。",
    ),
)
WORDS = {
    "en": {"code": "en"} | {key: en for key, en, _ in _WORDS},
    "zh": {"code": "zh"} | {key: zh for key, _, zh in _WORDS},
}


def speaking(language: str, build: Callable[[dict[str, str]], Any]) -> Any:
    """The picture that ``build`` makes of a language's words; it can also make itself
    ``in_english``.

    Raises ValueError for a language that is neither "en" nor "zh".
    """
    picture = build(_words(language))
    return picture if language == "en" else replace(picture, in_english=lambda: build(WORDS["en"]))


def _words(language: str) -> dict[str, str]:
    if language not in WORDS:
        raise ValueError(f"a picture's language is one of {', '.join(WORDS)}; got {language!r}")
    return WORDS[language]


def called(names: Iterable[str], language: str) -> list[str]:
    """What collectives and algorithms ("all_reduce", "ring") are called; a name that ``TITLES``
    lacks stays."""
    words = _words(language)
    return [words.get(title, title) for title in (TITLES.get(name, name) for name in names)]


def titled(heading: str, numbers: Iterable[tuple[str, ...]], badge: str, language: str) -> str:
    """What a picture shows, its numbers and where they come from, in one line."""
    words = _words(language)
    said = words["colon"].join(filter(None, (heading, words["comma"].join(map(" ".join, numbers)))))
    return words["badged"].format(said, badge)


def sentence(heading: str, parts: Iterable[tuple[str, ...]], badge: str, language: str) -> str:
    """The same as a sentence, for a picture's summary."""
    said = titled(heading, parts, badge, language)
    return WORDS[language]["stop"].format(said)


def style(kind: str) -> Kind:
    """How a kind looks; a kind this table does not know is grey, its letter a question mark."""
    return KINDS.get(kind) or _kind("?", "#a3a8b0", "", kind, kind)


def shade(colour: str, chunk: int, num_chunks: int) -> str:
    """A kind's colour for a rank's stage number ``chunk``: each later one is lighter."""
    if not colour:
        return "currentColor"
    check_whole(0, chunk=chunk, num_chunks=num_chunks)
    if not re.fullmatch("#[0-9a-f]{6}", colour):
        raise ValueError(f'a colour is "#rrggbb" or ""; got {colour!r}')
    white = min(1.0, 0.45 * chunk / max(1, num_chunks - 1))
    return "#" + "".join(
        f"{round(int(colour[i : i + 2], 16) * (1 - white) + 255 * white):02x}" for i in (1, 3, 5)
    )


def clipped(text: str, width_px: float, size_px: float = 12.0) -> str:
    """The text, or its beginning and an ellipsis where it is wider than ``width_px``."""
    while len(text) > 1 and text_px(text, size_px) > width_px:
        text = text[:-2].rstrip() + "…"
    return text


def text_px(text: str, size_px: float = 12.0) -> float:
    """About how wide a text is: a Chinese character is as wide as it is high, a Latin one a little
    over half."""
    return size_px * sum(1.02 if ord(character) > 0x2E80 else 0.58 for character in text)
