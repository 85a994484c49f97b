"""The experiment of this subject: one step of data parallelism on more and more ranks.

scaling = scaling.Scaling(kind="strong", ranks=(1, 2, 4))
scaling.predict()      # Scaled: by theory
scaling.run()          # real DistributedDataParallel
scaling.compare()      # both curves of efficiency
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from reprlib import repr as brief
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from labkit import words
from labkit.collectives.network import Link
from labkit.data_parallel import buckets
from labkit.data_parallel.buckets import Layer
from labkit.experiment import Difference, Experiment, Reading
from labkit.scaling import laws
from labkit.shown import Shown
from labkit.timeline import step_us
from labkit.units import check_real, check_whole, check_word, format_share

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

LINK = Link(alpha_us=500.0, bandwidth_gb_per_s=0.3)
"""a link that several ranks on two cores can keep to"""
SEQUENCE = 16
"""tokens of a sample"""
VOCAB = 256
"""bytes, as the story has them"""
PARTS = ("ideal", "fixed", "contention", "communication", "waiting")
_WORDS = words.catalogue(
    [
        ("strong", "Strong scaling, {} samples a step"),
        ("weak", "Weak scaling, {} samples a rank"),
        ("efficiency", "efficiency"),
        ("of", "Efficiency on {} ranks"),
        ("fixed", "what does not divide"),
        ("contention", "contention for cores"),
        ("communication", "communication"),
        ("waiting", "waiting for a slower rank"),
    ]
)


class Spent(NamedTuple):
    """Where the time of a step goes, in microseconds, on the average rank."""

    ideal_us: float
    """what the step would take if nothing were lost"""
    fixed_us: float
    """more, because some work does not divide: a rank alone takes that long for its share"""
    contention_us: float
    """more, because the others compute at the same time, without any message"""
    communication_us: float
    """more, because gradients are sent: what is not hidden, and what sending takes from compute"""
    waiting_us: float
    """from this rank's last gradient to the slowest rank's"""

    @property
    def step_us(self) -> float:
        """All together: the step."""
        return sum(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scaled(Shown):
    """A step on several numbers of ranks. Shows itself as a curve of efficiency."""

    kind: str
    """strong or weak"""
    spent: dict[int, Spent]
    """ranks -> where the time goes"""
    badge: str = "simulated"
    """where it comes from"""
    machine: str = ""
    """which one, if it was measured"""

    def __post_init__(self) -> None:
        check_word(self.kind, laws.KINDS, "a kind of scaling")
        if not isinstance(self.spent, dict) or not self.spent:
            raise ValueError(f"spent gives each number of ranks its Spent; got {brief(self.spent)}")
        for ranks, spent in self.spent.items():
            check_whole(1, 4096, ranks=ranks)
            check_real(1e-9, 1e18, ideal_us=spent.ideal_us, step_us=spent.step_us)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of ranks, from the smallest."""
        return tuple(sorted(self.spent))

    def efficiency(self, ranks: int | None = None) -> float:
        """Actual over theoretical speedup; on the most ranks, where nothing is said. Raises
        ValueError for a number that is not among ``ranks``."""
        spent = self.spent[self._known(ranks)]
        return spent.ideal_us / spent.step_us

    def speedup(self, ranks: int | None = None) -> float:
        """How many times the samples per second of one rank."""
        known = self._known(ranks)
        return known * self.efficiency(known)

    def lost(self, ranks: int | None = None) -> dict[str, float]:
        """What efficiency lacks to 1, by what it was lost to: shares of the step. One below nothing
        is a clock's noise."""
        spent = self.spent[self._known(ranks)]
        return {
            name: getattr(spent, f"{name}_us") / spent.step_us for name in PARTS if name != "ideal"
        }

    @property
    def efficiencies(self) -> dict[int, float]:
        """Ranks -> efficiency: a curve."""
        return {ranks: self.efficiency(ranks) for ranks in self.ranks}

    @property
    def shares(self) -> dict[str, dict[str, float]]:
        """Number of ranks -> what a step's time went to, in words: for ``lab.bars``, stacked."""
        from labkit.scaling import picture

        return picture.shares(self)

    def rows(self) -> list[dict[str, Any]]:
        """A row per number of ranks, for ``lab.table``."""
        found = []
        for ranks in self.ranks:
            spent = self.spent[ranks]
            times = {f"{name}_us": getattr(spent, f"{name}_us") for name in PARTS}
            row = {"ranks": ranks, "step_us": spent.step_us, **times}
            found.append(row | {"efficiency_share": self.efficiency(ranks)})
        return found

    def _known(self, ranks: int | None) -> int:
        if ranks is None:
            return self.ranks[-1]
        if ranks not in self.spent:
            raise ValueError(f"it was taken on {self.ranks} ranks; got {ranks!r}")
        return ranks

    def _picture(self, language: str) -> Any:
        from labkit.scaling import picture

        return picture.efficiency([self], language=language)

    def __repr__(self) -> str:
        told = ", ".join(f"{n}: {format_share(share)}" for n, share in self.efficiencies.items())
        return f"Scaled({self.kind}, {told}, {self.badge})"


@dataclass(frozen=True, kw_only=True)
class Scaling(Experiment):
    """A training step of a small transformer on several numbers of ranks, one after the other.

    ``run()[r]`` is a dict: alone_us, together_us, step_us, waiting_us (ranks -> this rank's
    microseconds: its quickest step alone on the machine; its quickest while all compute and nobody
    sends; the whole step, of which the one is told whose slowest rank was quickest; in that step,
    from this rank's last gradient to the slowest rank's), overruns, machine. Only rank 0 has
    alone_us; a rank has no numbers of a size in which it took no part.
    """

    kind: str = "strong"
    """"strong": the ranks share the batch; "weak": each has one of its own"""
    ranks: tuple[int, ...] = (1, 2, 4)
    """how many, one after the other; 1 is among them"""
    batch: int = 16
    """samples of a step: of all ranks together (strong), of each rank (weak)"""
    paced: bool = True
    """whether samples and links take the times below; False: the machine's own, one thread a rank,
    which theory does not predict"""
    sample_ms: float = 6.0
    """forward and backward of a sample"""
    fixed_ms: float = 2.0
    """what a step takes besides, however small its batch"""
    link: Link = LINK
    """an all-reduce takes a ring's time on such links"""
    layers: int = 2
    """blocks of the transformer"""
    hidden: int = 64
    """its width"""
    bucket_mb: float = 0.25
    """DDP's bucket_cap_mb, in MiB"""
    num_steps: int = field(default=4, repr=False)
    """steps of each kind after two of warm-up; the quickest is taken"""

    reading: ClassVar[Reading] = Reading(
        words.in_every("efficiency", _WORDS), lambda found: found.efficiency(), format_share
    )
    """what ``sweep`` draws of it: efficiency on the most ranks"""

    def __post_init__(self) -> None:
        check_word(self.kind, laws.KINDS, "a kind of scaling")
        if not isinstance(self.ranks, Iterable) or isinstance(self.ranks, str):
            raise ValueError(f"ranks are several numbers, e.g. (1, 2, 4); got {self.ranks!r}")
        object.__setattr__(self, "ranks", tuple(self.ranks))
        if 1 not in self.ranks or list(self.ranks) != sorted(set(self.ranks)):
            raise ValueError(f"ranks begin with 1 and grow, e.g. (1, 2, 4); got {self.ranks}")
        check_whole(1, 4096, batch=self.batch, num_steps=self.num_steps)
        check_whole(1, 64, layers=self.layers)
        check_whole(4, 1024, hidden=self.hidden)
        check_real(0.0, 1e6, sample_ms=self.sample_ms, fixed_ms=self.fixed_ms)
        check_real(0.0, 1e6, bucket_mb=self.bucket_mb)
        if self.hidden % 4:
            raise ValueError(f"the transformer has 4 heads; they do not divide {self.hidden}")
        for each in self.ranks:
            self.samples(each)

    def samples(self, ranks: int) -> int:
        """Of each rank in a step. Raises ValueError for ranks that can't share the batch evenly."""
        check_whole(1, 4096, ranks=ranks)
        if self.kind == "weak":
            return self.batch
        if self.batch % ranks:
            raise ValueError(
                f"a batch is dealt evenly; {self.batch} samples can't be for {ranks} ranks. Take a "
                f"multiple of {ranks}"
            )
        return self.batch // ranks

    # --- what theory says ---

    def predict(self) -> Scaled:
        """Every rank computes its samples, gradients go in DDP's buckets while the backward runs,
        and what is not hidden comes on top. Raises ValueError for the machine's own pace."""
        if not self.paced:
            raise ValueError(
                "a prediction needs stated times, and paced=False runs at the machine's own pace. "
                "Give paced=True, or fit a law to what was measured (scaling.karp_flatt)"
            )
        one_us = self._alone_us(1)
        spent = {}
        for ranks in self.ranks:
            ideal_us = one_us / ranks if self.kind == "strong" else one_us
            alone_us = self._alone_us(ranks)
            sent_us = self._with_messages_us(ranks) - alone_us
            spent[ranks] = Spent(ideal_us, alone_us - ideal_us, 0.0, sent_us, 0.0)
        return Scaled(kind=self.kind, spent=spent)

    def _alone_us(self, ranks: int) -> float:
        """What a rank takes for its share where nobody else is there."""
        return 1e3 * (self.samples(ranks) * self.sample_ms + self.fixed_ms)

    def _with_messages_us(self, ranks: int) -> float:
        """The step of one rank among others that are like it."""
        if ranks == 1:
            return self._alone_us(1)
        parameters = self.parameters(ranks)
        sizes = [each.num_bytes for each in parameters]
        plan = buckets.assign(sizes, int(self.bucket_mb * buckets.MIB))
        all_reduce_us = buckets.ring_us(ranks, self.link)
        line = buckets.simulate(parameters, plan, all_reduce_us, num_ranks=1)
        return step_us(line) + 1e3 * self.fixed_ms

    def parameters(self, ranks: int) -> list[Layer]:
        """The weights in the model's order. A layer's time stands at its last weight: none of its
        gradients leaves before the layer is done."""
        hidden = self.hidden
        square = hidden * hidden
        block = (hidden, hidden, hidden, hidden, 3 * square, 3 * hidden, square, hidden)
        block += (4 * square, 4 * hidden, 4 * square, hidden)
        embed = (VOCAB * hidden, 128 * hidden)
        head = (hidden, hidden, VOCAB * hidden)
        forward_us = self.forward_us(ranks)
        found = []
        for number, sizes in enumerate((embed, *self.layers * [block], head)):
            for place, size in enumerate(sizes, start=1):
                took_us = forward_us if place == len(sizes) else 0.0
                name = f"{number}.{place}"
                found.append(Layer(name=name, num_bytes=4 * size, forward_us=took_us))
        return found

    def forward_us(self, ranks: int) -> float:
        """The stated forward of each layer; its backward takes twice as long."""
        return 1e3 * self.samples(ranks) * self.sample_ms / (3 * (self.layers + 2))

    # --- on real ranks ---

    def start(self) -> "Job":
        """Trains with real DistributedDataParallel on each number of ranks, in the background."""
        from labkit.scaling import run

        return run.start(self)

    def refusal(self, language: str | None = None) -> str | None:
        """More ranks than the cores can carry would show the cores and not the step."""
        from labkit.scaling import run

        with words.meanwhile(words.spoken_in(language)):
            return run.obstacle(self.ranks[-1])

    def title(self, language: str | None = None) -> str:
        """Which scaling, of how many samples."""
        return _WORDS[words.spoken_in(language)][self.kind].format(self.batch)

    def measured(self, run: "Run") -> Scaled:
        """What the ranks' clocks say, split as ``Spent`` is."""
        one_us = run[0]["alone_us"][1]
        spent = {}
        for ranks in self.ranks:
            ideal_us = one_us / ranks if self.kind == "strong" else one_us
            silent_us = [run[rank]["together_us"][ranks] for rank in range(ranks)]
            # among others nobody is quicker than alone: where one was, the clock had been disturbed
            alone_us = min(run[0]["alone_us"][ranks], *silent_us)
            together_us = _mean(silent_us)
            whole_us = _mean([run[rank]["step_us"][ranks] for rank in range(ranks)])
            waiting_us = _mean([run[rank]["waiting_us"][ranks] for rank in range(ranks)])
            spent[ranks] = Spent(
                ideal_us=ideal_us,
                fixed_us=alone_us - ideal_us,
                contention_us=together_us - alone_us,
                communication_us=whole_us - together_us - waiting_us,
                waiting_us=waiting_us,
            )
        machine = run[0]["machine"]
        return Scaled(kind=self.kind, spent=spent, badge=run.badge, machine=machine)

    def difference(self, predicted: Scaled, measured: Scaled) -> Difference:
        """The efficiency on the most ranks, and what it was lost to."""
        before = predicted.lost()
        after = measured.lost()
        said = {code: _WORDS[code]["of"].format(self.ranks[-1]) for code in words.LANGUAGES}
        return Difference(
            of=said,
            causes={name: before[name] - after[name] for name in before},
            names={name: words.in_every(name, _WORDS) for name in before},
            written=format_share,
        )

    def drawn(
        self,
        predicted: Scaled,
        measured: Scaled | None = None,
        language: str | None = None,
        *,
        span_us: float | None = None,
    ) -> Any:
        """Efficiency over ranks: the prediction a line, what was measured dots."""
        from labkit.scaling import picture

        title = {code: self.title(code) for code in words.LANGUAGES}
        found = [predicted] if measured is None else [predicted, measured]
        return picture.efficiency(found, title=title, language=language)


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)
