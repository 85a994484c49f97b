"""How kinds of work look and what they are called, in English and Chinese: the words and colours of every picture."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one kind of work looks: a colour and, for eyes or printers that do not see it, a letter and a hatch."""

    letter: str
    """one character, different for every kind"""
    colour: str
    """"#rrggbb", readable under dark ink, on white and on near-black; "" follows the text's colour"""
    hatch: str
    """a matplotlib hatch character, or "" for plain"""
    words: dict[str, str]
    """its name in each language"""


def _kind(letter: str, colour: str, hatch: str, en: str, zh: str) -> Kind:
    return Kind(letter=letter, colour=colour, hatch=hatch, words={"en": en, "zh": zh})


IDLE = "idle"
KINDS = {
    "F": _kind("F", "#5aa9e6", "", "forward", "前向"),
    "B": _kind("B", "#ee8a3c", "", "backward", "反向"),
    "I": _kind("I", "#f2bd4b", "", "input gradient", "输入梯度"),
    "W": _kind("W", "#4db892", ".", "weight gradient", "权重梯度"),
    "compute": _kind("C", "#5aa9e6", "", "compute", "计算"),
    "send": _kind("s", "#c98bbd", "", "send", "发送"),
    "recv": _kind("r", "#9a8fd8", "\\", "receive", "接收"),
    "all_reduce": _kind("a", "#d9728a", "x", "all-reduce", "all-reduce"),
    "all_gather": _kind("g", "#b59a5b", "|", "all-gather", "all-gather"),
    "reduce_scatter": _kind("e", "#8fb04a", "-", "reduce-scatter", "reduce-scatter"),
    "wait": _kind("w", "#a3a8b0", "+", "wait", "等待"),
    IDLE: _kind(".", "", "/", "idle (bubble)", "空闲（气泡）"),
}
_WORDS = (
    ("timeline", "Timeline", "时间线"),
    ("compare", "Predicted and measured", "预测与实测"),
    ("predicted", "Predicted", "预测"),
    ("measured", "measured", "实测"),
    ("simulated", "simulated", "模拟"),
    ("recorded", "recorded", "录制"),
    ("paced", "paced", "定速"),
    ("bubble", "bubble", "气泡"),
    ("of", "{} of total time", "占总时间 {}"),
    ("span", "span", "总时长"),
    ("in_flight", "peak in flight", "激活峰值"),
    ("hidden", "communication hidden", "被掩盖的通信"),
    ("difference", "difference", "相差"),
    ("points", "{} points", "{} 个百分点"),
    ("busy", "busy", "忙碌"),
    ("idle", "idle", "空闲"),
    ("share", "idle share", "空闲占比"),
    ("comm", "communication", "通信"),
    ("chunk", "lighter: later stage of the rank", "较浅：该 rank 靠后的 stage"),
    ("nothing", "Nothing to show: no spans.", "没有可显示的内容。"),
    ("table", "The same as a table", "同样内容的表格"),
    ("summary", "{ranks} ranks, {span}, {badge}: {bubble} of the ranks' time is idle, most on rank {worst} ({most}).",
     "{ranks} 个 rank，{span}，{badge}：空闲占 {bubble}，rank {worst} 最多（{most}）。"),
)
WORDS = {"en": {"code": "en"} | {key: en for key, en, _ in _WORDS}, "zh": {"code": "zh"} | {key: zh for key, _, zh in _WORDS}}


def style(kind: str) -> Kind:
    """How a kind looks; a kind this table does not know is grey and marked by its first letter."""
    return KINDS.get(kind) or _kind(kind[:1].upper() or "?", "#a3a8b0", "", kind, kind)


def shade(colour: str, chunk: int, num_chunks: int) -> str:
    """A kind's colour for a rank's stage number ``chunk``: each later one is lighter."""
    white = 0.45 * chunk / max(1, num_chunks - 1)
    return "#" + "".join(f"{round(int(colour[i : i + 2], 16) * (1 - white) + 255 * white):02x}" for i in (1, 3, 5))
