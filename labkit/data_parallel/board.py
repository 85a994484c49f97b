"""``ddp_communication()``: buckets and overlap in a step of data parallelism, predicted and then
run."""

from dataclasses import dataclass

from labkit.collectives.network import Link
from labkit.data_parallel import buckets, run
from labkit.data_parallel.buckets import Layer
from labkit.launching.job import Job
from labkit.pictures.painters import svg
from labkit.pictures.scene import Scene, compare, timeline
from labkit.timeline import Timeline, exposed_comm_us, hidden_comm, step_us
from labkit.units import format_bytes, format_share, format_us
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, selectors

__all__ = ["ddp_communication"]

ALPHA_US = 1000.0
FORWARD_US = 10_000.0
TOTAL_BYTES = 24 * buckets.MIB
MOST_LISTED = 8
"""buckets whose sizes are said"""
SHAPES = {
    "even": (1,) * 6,
    "head": (1, 1, 1, 1, 1, 7),
    "embedding": (7, 1, 1, 1, 1, 1),
    "many": (1,) * 24,
}
_OPTIONS = {
    "bucket": (0.1, 0.5, 1, 2, 4, 6, 8, 12, 16, 25, 50, 100),
    "layers": tuple(SHAPES),
    "link": (0.1, 0.2, 0.3, 0.5, 1.0, 2.0),
    "ranks": (2, 3, 4),
    "overlap": (True, False),
}
_WORDS = (
    ("bucket", "bucket (MiB)", "桶 (MiB)"),
    ("layers", "layers", "层"),
    ("even", "6 equal layers", "6 个等大的层"),
    ("head", "6, the last one large", "6 层，最后一层大"),
    ("embedding", "6, the first one large", "6 层，第一层大"),
    ("many", "24 small layers", "24 个小层"),
    ("link", "link (GB/s)", "链路 (GB/s)"),
    ("ranks", "ranks", "rank 数"),
    ("overlap", "overlap", "重叠"),
    ("on", "on", "开"),
    ("off_", "off: after the backward", "关：反向之后再通信"),
    ("title", "{} buckets, {} ranks", "{} 个桶，{} 个 rank"),
    (
        "predicted",
        "Simulated: step {}, {} of the communication hidden under compute, {} exposed per rank.",
        "模拟：一步 {}，{} 的通信藏在计算之下，每个 rank 露出 {}。",
    ),
    ("measured", "Measured: step {}, {} hidden, {} exposed.", "实测：一步 {}，藏住 {}，露出 {}。"),
    ("buckets", "Buckets in the order they fill: {}.", "按装满的先后，各桶：{}。"),
    (
        "stated",
        "Stated, not measured: forward {} and backward {} in all, link latency {}; buckets take a "
        "ring's time.",
        "规定而非实测：前向共 {}、反向共 {}，链路延迟 {}；每个桶用环形算法的时间。",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One position of all controls."""

    bucket_mb: float
    """DDP's bucket_cap_mb, in MiB"""
    layers: str
    """a key of SHAPES"""
    bandwidth_gb_per_s: float
    """of the paced link"""
    num_ranks: int
    """how many replicas"""
    overlap: bool
    """whether all-reduces may begin before the backward has ended"""

    def model(self) -> list[Layer]:
        """Layers whose gradients are TOTAL_BYTES together, and whose times are equal."""
        shape = SHAPES[self.layers]
        return [
            Layer(
                name=f"layer {i}",
                num_bytes=4 * round(TOTAL_BYTES * part / sum(shape) / 4),
                forward_us=6 * FORWARD_US / len(shape),
            )
            for i, part in enumerate(shape)
        ]

    def options(self) -> dict:
        """What ``data_parallel`` takes."""
        link = Link(alpha_us=ALPHA_US, bandwidth_gb_per_s=self.bandwidth_gb_per_s)
        return {"bucket_mb": self.bucket_mb, "link": link, "overlap": self.overlap}


class DdpBoard(Trial):
    """The widget: pages by bucket size; ``run()`` trains real DistributedDataParallel with the same
    setting."""

    options = _OPTIONS
    setting_type = Setting

    def __init__(self, language: str = "en", **start: object) -> None:
        words = spoken(_WORDS, language)
        shown = {
            "layers": words.get,
            "bucket": "{:g}".format,
            "link": "{:g}".format,
            "overlap": lambda on: words["on" if on else "off_"],
        }
        dropdowns = ("layers", "overlap")
        super().__init__(language, _WORDS, selectors(_OPTIONS, start, words, shown, dropdowns))

    def predict(self, setting: Setting) -> Timeline:
        """The simulated step."""
        return buckets.predict(setting.model(), setting.num_ranks, **setting.options())

    @property
    def predicted(self) -> Timeline:
        """The simulated step of the setting."""
        return self.prediction(self.setting)

    def scene(self) -> Scene:
        """The picture as it stands."""
        return self._scene(self.setting)

    def _scene(self, setting: Setting) -> Scene:
        predicted = self.prediction(setting)
        title = self._words["title"].format(len(_buckets(setting)), setting.num_ranks)
        measured = self.timeline_of(setting)
        if measured is None:
            return timeline(predicted, title=title, language=self.language)
        return compare(predicted, measured, title=title, language=self.language)

    def page(self, setting: Setting) -> str:
        """The picture, and the step's figures."""
        notes = [_figures(self._words["predicted"], self.prediction(setting))]
        measured = self.timeline_of(setting)
        if measured is not None:
            notes.append(_figures(self._words["measured"], measured))
        stated = self._words["stated"].format(
            format_us(6 * FORWARD_US), format_us(12 * FORWARD_US), format_us(ALPHA_US)
        )
        notes += [self._words["buckets"].format(self._listed(setting)), stated]
        return svg.html(self._scene(setting)) + paragraphs(*notes)

    def _listed(self, setting: Setting) -> str:
        """The sizes of the first buckets."""
        layers = setting.model()
        sizes = []
        for bucket in _buckets(setting):
            sizes.append(format_bytes(sum(layers[index].num_bytes for index in bucket)))
        comma = ", " if self.language == "en" else "、"
        listed = comma.join(sizes[:MOST_LISTED])
        return f"{listed} ..." if len(sizes) > MOST_LISTED else listed

    def begin(self, setting: Setting) -> Job:
        """The setting with real DDP, real gradients and paced layers."""
        return run.start(setting.model(), setting.num_ranks, **setting.options())


def ddp_communication(
    language: str = "en",
    *,
    bucket_mb: float = 4,
    layers: str = "even",
    overlap: bool = True,
    num_ranks: int = 4,
) -> DdpBoard:
    """How DDP hides its all-reduces under the backward: bucket size, layer sizes, link; in English
    or "zh"."""
    return DdpBoard(
        language, bucket=bucket_mb, layers=layers, link=0.3, ranks=num_ranks, overlap=overlap
    )


def _buckets(setting: Setting) -> tuple[tuple[int, ...], ...]:
    return buckets.assign(
        [layer.num_bytes for layer in setting.model()], int(setting.bucket_mb * buckets.MIB)
    )


def _figures(words: str, step: Timeline) -> str:
    exposed_us = float(exposed_comm_us(step).mean())
    return words.format(
        format_us(step_us(step)), format_share(hidden_comm(step)), format_us(exposed_us)
    )
