"""The language that labkit speaks, the words that pictures say in it, and the sentences made of
them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

LANGUAGES = ("en", "zh")
_language = "en"


def use(language: str) -> None:
    """Pictures, tables, verdicts and hints speak English ("en") or Chinese ("zh") from now on.
    Raises ValueError for another language."""
    global _language
    _language = spoken_in(language)


def language() -> str:
    """The language in use: "en" or "zh"."""
    return _language


def spoken_in(language: str | None) -> str:
    """The language asked for; the one in use where none is. Raises ValueError for one that labkit
    does not speak."""
    wanted = _language if language is None else language
    if wanted not in LANGUAGES:
        raise ValueError(f"labkit speaks {' and '.join(LANGUAGES)}; got {wanted!r}")
    return wanted


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
    ("recorded", "recorded", "既有数据"),
    ("computed", "computed", "计算值"),
    ("paced", "paced", "固定时长"),
    ("paced links", "paced links", "限速链路"),
    ("overran", "overran", "实际用时超出设定"),
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
    ("num_ranks", "{} ranks", "{} 个 rank"),
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


def catalogue(rows: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, str]]:
    """Language -> words by their key, from rows (key, English, Chinese)."""
    words: dict[str, dict[str, str]] = {"en": {}, "zh": {}}
    for key, english, chinese in rows:
        words["en"][key] = english
        words["zh"][key] = chinese
    return words


def both(key: str, words: dict[str, dict[str, str]]) -> dict[str, str]:
    """A word of a catalogue in every language."""
    return {language: words[language][key] for language in LANGUAGES}


WORDS = catalogue([("code", "en", "zh"), *_WORDS])


TITLES: dict[str, str] = {
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_reduce": "All-reduce",
    "all_gather": "All-gather",
    "reduce_scatter": "Reduce-scatter",
    "all_to_all": "All-to-all",
    "send_recv": "Send and receive",
    "parameter_server": "Parameter server",
    "ring": "Ring",
    "tree": "Tree",
    "double_tree": "Double binary tree",
    "hierarchical": "Hierarchical",
    "star": "Star",
    "pairwise": "Pairwise",
    "direct": "Direct",
}
"""Words for every primitive and algorithm"""


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


def called(names: Iterable[str], language: str, *more: str) -> str:
    """What a collective and its algorithm are called, and more: of ("all_reduce", "ring") and
    "N = 4" it is "All-reduce: Ring, N = 4". A name that ``TITLES`` lacks stays."""
    words = _words(language)
    titles = [TITLES.get(name, name) for name in names]
    name = words["colon"].join(words.get(title, title) for title in titles)
    return words["comma"].join((name, *more))


def titled(heading: str, numbers: Iterable[tuple[str, ...]], badge: str, language: str) -> str:
    """What a picture shows, its numbers and where they come from, in one line."""
    words = _words(language)
    told = words["comma"].join(" ".join(pair) for pair in numbers)
    said = words["colon"].join(part for part in (heading, told) if part)
    return words["badged"].format(said, badge)


def sentence(heading: str, parts: Iterable[tuple[str, ...]], badge: str, language: str) -> str:
    """The same as a sentence, for a picture's summary."""
    said = titled(heading, parts, badge, language)
    return WORDS[language]["stop"].format(said)
