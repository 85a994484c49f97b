"""Driving perception: encoders of camera, LiDAR and radar, a fusion, two heads; who does what, how
gradients travel, and how long a step takes.

    case_studies.Perception().compare()                  # predicted and on real ranks
    case_studies.Perception(placement="apart").predict() # the groups of the source, on 8

Encoders and heads are data-parallel in their group; the fusion is tensor-parallel in its own, each
rank with some of its attention heads. Between the phases of a step all ranks hand on features and
their gradients. Copied, as by DDP, all of it is data-parallel, and no features travel.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from labkit.experiment import Experiment
from labkit.timeline import COMM, COMPUTE, Timeline, from_rows, step_us
from labkit.units import check_real, check_whole, check_word
from labkit.words import both, spoken_in

if TYPE_CHECKING:
    from labkit.launching.job import Job

PLACEMENTS = ("together", "apart", "copied")
"""every rank does a part of everything; three groups of ranks, each for one part of the net; or
every rank has all of the net, for its part of the batch"""
WIDTH = 32
"""of a feature"""
HEADS = 4
"""attention heads of the fusion"""
CELLS = 16
"""of the camera's picture, 4 x 4: one feature each"""
WEIGHTS = {"convolution": 1384, "linear": 7520, "norm": 192, "heads": 1221}
"""kind of layer -> its weights: of the encoders three kinds, and the heads"""
FUSION_WEIGHTS = 4 * WIDTH * WIDTH
"""of queries, keys, values and the output"""
WAYS = ("exact", "fp16", "top-k", "late")
"""how gradients travel: as they are; as halves; the largest sixteenth of them, with what was not
sent remembered; or not at all, and every fourth step the weights are averaged"""
SHARE = 1 / 16
"""of the gradients, by "top-k" """
EVERY = 4
"""steps, by "late" """
PHASES = (
    ("encoders", "forward", "encoders"),
    ("fusion", "forward", "fusion"),
    ("heads", "forward", ""),
    ("heads", "backward", "fusion"),
    ("fusion", "backward", "encoders"),
    ("encoders", "backward", ""),
)
"""(part of the net, way through it, whose features or their gradients are handed on behind it)"""
LABELS = {"encoders": "E", "fusion": "F", "heads": "H"}
"""part of the net -> what its blocks are called in pictures, where there is little room"""
COSTS = {"forward": 1.0, "backward": 2.0}
"""in forwards: a backward takes two matrix products for each one of the forward"""
PLAIN = {kind: "exact" for kind in WEIGHTS}


@dataclass(frozen=True, kw_only=True)
class Perception(Experiment):
    """A training of the perception net on made-up scenes (``sensors_run``), computing and links at
    a stated pace.

    ``run()[r]`` is a dict: losses (of each step, over the whole batch), losses_alone (of one
    process), loss_difference (the largest between them), step_us (of each step), handed_in_bytes
    (gradients in all steps), weights (the kinds that ``WEIGHTS`` counts; copied, all of them as
    one), samples_per_s (this rank's, measured before). Raises ValueError for what can't be.
    """

    board_home: ClassVar[None] = None
    """it has none"""

    placement: str = "together"
    """"together": all ranks in all groups; "apart": half of them encode, a quarter fuses, a quarter
    has the heads; "copied": each has all of the net"""
    ranks: int = 4
    """real ones"""
    batch: int = 16
    """scenes of a step, of all ranks together"""
    steps: int = 4
    """updates"""
    ways: tuple[tuple[str, str], ...] = tuple(PLAIN.items())
    """(kind of layer, how its gradients travel) for each kind of ``WEIGHTS``"""
    shares: tuple[int, ...] = ()
    """scenes that each rank of the encoders and heads has; () is evenly"""
    slow: tuple[tuple[int, float], ...] = ()
    """(rank, factor on all that it computes)"""
    encoders_ms: float = 40.0
    """forward of the encoders for the whole batch, on one rank"""
    fusion_ms: float = 20.0
    """the same of the fusion"""
    heads_ms: float = 10.0
    """the same of the heads"""
    latency_us: float = 4000.0
    """of a message"""
    mb_per_s: float = 5.0
    """of the link: 1e6 bytes a second"""
    rate: float = field(default=0.02, repr=False)
    """of SGD with momentum"""

    def __post_init__(self) -> None:
        check_word(self.placement, PLACEMENTS, "a placement")
        check_whole(1, 64, ranks=self.ranks)
        check_whole(1, 4096, batch=self.batch)
        check_whole(1, 10_000, steps=self.steps)
        check_real(0.0, 1e5, encoders_ms=self.encoders_ms, fusion_ms=self.fusion_ms)
        check_real(0.0, 1e5, heads_ms=self.heads_ms, latency_us=self.latency_us)
        check_real(1e-3, 1e9, mb_per_s=self.mb_per_s)
        check_real(0.0, 1e3, rate=self.rate)
        self._check_groups()
        self._check_ways()

    def _check_groups(self) -> None:
        """Raises ValueError for ranks that can't share the work so."""
        if self.placement == "apart" and self.ranks % 4:
            raise ValueError(
                "apart, half of the ranks encode, a quarter fuses and a quarter has the heads; got "
                f"{self.ranks} ranks. Take 4, 8 or 16"
            )
        if self.placement != "copied" and HEADS % len(self.group("fusion")):
            raise ValueError(
                f"ranks of the fusion share its {HEADS} attention heads evenly; got "
                f"{len(self.group('fusion'))} ranks. Take 1, 2 or 4 there"
            )
        for part in ("encoders", "heads"):
            if not self.shares and self.batch % len(self.group(part)):
                raise ValueError(
                    f"the {part} share the batch evenly where no shares are given; got "
                    f"{self.batch} scenes for {len(self.group(part))} ranks"
                )
        for rank, factor in self.slow:
            check_whole(0, self.ranks - 1, slow_rank=rank)
            check_real(0.0, 1e3, slow_factor=factor)
        if self.shares and (self.placement == "apart" or len(self.shares) != self.ranks):
            raise ValueError(
                "shares are for ranks that are together or copied, one for each; got "
                f"{len(self.shares)} for {self.ranks} ranks {self.placement}"
            )
        check_whole(1, self.batch, **{f"share_{at}": each for at, each in enumerate(self.shares)})
        if self.shares and sum(self.shares) != self.batch:
            raise ValueError(
                f"shares are the batch together; got {sum(self.shares)} of {self.batch} scenes"
            )

    def _check_ways(self) -> None:
        """Raises ValueError for a policy that is none."""
        if dict(self.ways).keys() != WEIGHTS.keys() or len(self.ways) != len(WEIGHTS):
            raise ValueError(
                f"each kind of layer has one way: {', '.join(WEIGHTS)}; got {self.ways!r:.120}"
            )
        for way in self.policy.values():
            check_word(way, WAYS, "a way")
        if self.placement != "together" and set(self.policy.values()) != {"exact"}:
            raise ValueError(
                "gradients are compressed among all ranks, kind by kind; apart, each group has its "
                "own, and copied they are one message. Take placement='together', or send all of "
                "them exactly"
            )

    @property
    def policy(self) -> dict[str, str]:
        """Kind of layer -> how its gradients travel."""
        return dict(self.ways)

    def group(self, part: str) -> tuple[int, ...]:
        """The ranks that have a part of the net: "encoders", "fusion" or "heads". Raises ValueError
        for another."""
        check_word(part, ("encoders", "fusion", "heads"), "a part")
        everyone = tuple(range(self.ranks))
        if self.placement != "apart":
            return everyone
        half = self.ranks // 2
        quarter = self.ranks // 4
        cuts = {"encoders": (0, half), "fusion": (half, half + quarter)}
        start, end = cuts.get(part, (half + quarter, self.ranks))
        return everyone[start:end]

    def _sharing(self, kind: str) -> tuple[int, ...]:
        """The ranks that add up a kind of gradients."""
        return self.group("heads" if kind == "heads" else "encoders")

    def scenes(self, part: str) -> dict[int, range]:
        """Which scenes of the batch each rank of a part has; of a fusion that is not copied each
        has all."""
        ranks = self.group(part)
        if part == "fusion" and self.placement != "copied":
            return dict.fromkeys(ranks, range(self.batch))
        shares = self.shares or (self.batch // len(ranks),) * len(ranks)
        found = {}
        start = 0
        for rank, share in zip(ranks, shares, strict=True):
            found[rank] = range(start, start + share)
            start += share
        return found

    def compute_us(self, part: str, way: str, rank: int) -> float:
        """What a rank needs for a part of the net, "forward" or "backward"; 0 where it has none."""
        check_word(way, COSTS, "a way through the net")
        if rank not in self.group(part):
            return 0.0
        whole_us = 1e3 * COSTS[way] * getattr(self, f"{part}_ms")
        share = len(self.scenes(part)[rank]) / self.batch
        if part == "fusion" and self.placement != "copied":
            share = 1 / len(self.group(part))
        return whole_us * share * dict(self.slow).get(rank, 1.0)

    def slowed(self, times: float) -> "Perception":
        """The same, all that is paced so many times as slow: computing and links. Raises ValueError
        for a factor that can't be."""
        check_real(1e-3, 1e3, times=times)
        return self.but(
            encoders_ms=times * self.encoders_ms,
            fusion_ms=times * self.fusion_ms,
            heads_ms=times * self.heads_ms,
            latency_us=times * self.latency_us,
            mb_per_s=self.mb_per_s / times,
        )

    def message_us(self, num_bytes: float) -> float:
        """What a message takes, by the bytes that a rank hands in."""
        return self.latency_us + num_bytes / self.mb_per_s

    def feature_bytes(self, part: str) -> int:
        """What the ranks hand one another behind a part, features of the whole batch in fp32: from
        the encoders a camera's cells and one of LiDAR and radar each, from the fusion the cells."""
        check_word(part, ("encoders", "fusion"), "a part that hands on")
        tokens = CELLS + 2 if part == "encoders" else CELLS
        return 4 * self.batch * tokens * WIDTH

    def gradient_messages(self, number: int = 0) -> list[tuple[str, str, int]]:
        """(kind of layer, collective, bytes handed in by a rank) of a step's gradients; the steps
        are numbered from 0. Copied, they are one message, as in DDP's bucket; a part that one rank
        alone has sends none."""
        if self.placement == "copied":
            weights = sum(WEIGHTS.values()) + FUSION_WEIGHTS
            return [("weights", "all_reduce", 4 * weights)]
        found = []
        for kind, way in self.policy.items():
            if len(self._sharing(kind)) == 1:
                continue
            size = WEIGHTS[kind]
            if way == "top-k":
                kept = max(1, int(SHARE * size))
                found += [(kind, "all_gather", 4 * kept)] * 2  # values, and their places
            elif way != "late" or number % EVERY == EVERY - 1:
                found.append((kind, "all_reduce", 2 * size if way == "fp16" else 4 * size))
        return found

    def message_bytes(self) -> list[int]:
        """What a rank hands in to each message of the first step, features before gradients."""
        parts = [part for _, _, part in PHASES if part and self.placement != "copied"]
        features = [self.feature_bytes(part) for part in parts]
        return features + [num_bytes for _, _, num_bytes in self.gradient_messages()]

    def gradient_bytes(self) -> int:
        """Handed in by a rank of all groups, in all steps."""
        found = 0
        for number in range(self.steps):
            found += sum(num_bytes for _, _, num_bytes in self.gradient_messages(number))
        return found

    # --- as an experiment ---

    def predict(self) -> Timeline:
        """The last step: each phase begins when the messages before it are there."""
        rows: list[tuple] = []
        now_us = 0.0
        for part, way, handed in PHASES:
            ends = [now_us]
            for rank in self.group(part):
                end_us = now_us + self.compute_us(part, way, rank)
                rows.append((rank, COMPUTE, way, LABELS[part], now_us, end_us, 0))
                ends.append(end_us)
            now_us = max(ends)
            if handed and self.placement != "copied":
                num_bytes = self.feature_bytes(handed)
                now_us = self._message(rows, range(self.ranks), "features", now_us, num_bytes)
        free_us: dict[tuple[int, ...], float] = {}  # groups send side by side
        for kind, _, num_bytes in self.gradient_messages(self.steps - 1):
            ranks = self._sharing(kind)
            ready_us = max(row[5] for row in rows if row[0] in ranks)
            begin_us = free_us.get(ranks, ready_us)
            free_us[ranks] = self._message(rows, ranks, kind, begin_us, num_bytes)
        return from_rows(rows, num_ranks=self.ranks, origin="simulated")

    def step_us(self) -> float:
        """How long the predicted step takes, its messages included."""
        return step_us(self.predict())

    def _message(
        self, rows: list[tuple], ranks: "range | tuple", label: str, now_us: float, num_bytes: int
    ) -> float:
        """Adds one message of some ranks; when it is over."""
        end_us = now_us + self.message_us(num_bytes)
        for rank in ranks:
            mine = [row[5] for row in rows if row[0] == rank]
            start_us = max(mine, default=now_us)
            rows.append((rank, COMM, "all_reduce", label, start_us, end_us, num_bytes))
        return end_us

    def start(self) -> "Job":
        """The training on real ranks, in the background."""
        from labkit.case_studies import perception_run

        return perception_run.start(self)

    def title(self, language: str | None = None) -> str:
        """What pictures of it are called."""
        names = {
            "together": both("Perception: every rank has a part of everything"),
            "apart": both("Perception: each group of ranks has a part of the net"),
            "copied": both("Perception: every rank has all of the net"),
        }
        return names[self.placement][spoken_in(language)]


POLICIES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "plain": tuple(PLAIN.items()),
    "fp16": tuple(dict.fromkeys(WEIGHTS, "fp16").items()),
    "per layer": tuple((PLAIN | {"linear": "top-k", "norm": "late"}).items()),
    "top-k all": tuple(dict.fromkeys(WEIGHTS, "top-k").items()),
}
"""name -> a way for each kind of layer; "per layer" is the source's: convolutions exactly, linear
layers compressed, norms late"""
