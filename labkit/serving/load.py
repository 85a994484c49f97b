"""The experiment of this subject: requests that come by chance, slots that serve them, a policy;
what theory says of it, and the same with a model on real ranks.

    load = serving.Load(policy="continuous", rate=10.0)
    load.predict()                        # simulated: queue and slots in time
    load.run()                            # a server on real ranks, requests by the clock
    lab.sweep(load, rate=[2, 5, 10, 20])  # latency against the load
"""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from labkit import words
from labkit.experiment import Difference, Experiment, Reading
from labkit.serving import queue
from labkit.serving.queue import POLICIES, Cost, Request, Visit
from labkit.serving.served import PARTS, Served
from labkit.units import check_real, check_whole, check_word, format_us

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run
    from labkit.shown import Picture

MOST_REAL = {"ranks": 4, "slots": 16, "requests": 256, "tokens": 256}
"""of a real run: ``tokens`` are those of the longest request, prompt and answer"""
MOST_SECONDS = 60.0
"""a real run that is predicted to take longer is refused"""
_WORDS = words.catalogue(
    [
        ("title", "{policy} batching: {rate:g} requests a second, {slots} slots"),
        ("static", "Static"),
        ("continuous", "Continuous"),
        ("reading", "latency (95th percentile)"),
        ("of", "Mean latency"),
        ("queue", "before a slot"),
        ("prefill", "prefill"),
        ("decode", "decode"),
        ("held", "done, waiting for the batch"),
        ("many", "real runs take up to {most} {what}; this has {given}"),
        ("ranks", "ranks"),
        ("slots", "slots"),
        ("requests", "requests"),
        ("tokens", "tokens in a request"),
        ("long", "real runs take up to {most:g} s; this is predicted to take {given:.0f} s"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Load(Experiment):
    """A load on a server. Requests and the pace of its work are stated; which of them meet is
    chance, drawn by ``seed``.

    ``run()[r]`` is a dict: tokens (request -> the tokens of its answer), num_differing (answers
    unlike those of the whole model on one process, without a cache, a request at a time),
    cache_bytes (of this rank's keys and values), overruns (work that took longer than stated), and
    on rank 0 times_us (the visits; empty on the others).
    """

    policy: str = "continuous"
    """a key of ``queue.POLICIES``"""
    slots: int = 4
    """how many requests are inside at a time"""
    rate: float = 10.0
    """requests a second, on average"""
    requests: int = 24
    """how many come"""
    prompt: int = 8
    """tokens of a prompt"""
    output: int = 12
    """tokens of an answer, on average"""
    spread: float = 0.8
    """how unequal answers are long: the deviation of their logarithm; 0: all alike"""
    patience_ms: float = 0.0
    """how long a static batch waits to be full"""
    prefill_ms: float = 1.5
    """a token of a prompt, stated and kept"""
    step_ms: float = 20.0
    """a step of decoding, whoever is inside"""
    sequence_ms: float = 1.0
    """and for each who is"""
    paced: bool = True
    """whether real ranks keep these times; False: the machine's own, which nothing predicts"""
    ranks: int = 2
    """real ranks that share the model, by tensor parallelism"""
    seed: int = 0
    """of the requests and of the weights"""

    reading: ClassVar[Reading] = Reading(
        words.in_every("reading", _WORDS),
        lambda served: served.figures().latency_p95_us,
        format_us,
    )
    """what ``sweep`` draws of it"""

    def __post_init__(self) -> None:
        check_word(self.policy, POLICIES, "a policy")
        check_whole(1, 1024, slots=self.slots, ranks=self.ranks)
        check_real(0.0, 1e6, patience_ms=self.patience_ms)
        check_real(0.0, 1e4, **self._times_ms())
        if self.policy != "static" and self.patience_ms:
            raise ValueError(
                "patience is what a static batch has; continuous batching waits for nobody, and "
                f"got patience_ms={self.patience_ms:g}: leave it 0"
            )
        if self.step_ms + self.sequence_ms == 0:
            raise ValueError(
                "a step takes some time: step_ms or sequence_ms is above 0; both are 0"
            )
        self.coming()

    def _times_ms(self) -> dict[str, float]:
        """The stated times."""
        return {
            "prefill_ms": self.prefill_ms,
            "step_ms": self.step_ms,
            "sequence_ms": self.sequence_ms,
        }

    # --- what theory says ---

    def coming(self) -> tuple[Request, ...]:
        """The requests."""
        return queue.requests(
            self.requests,
            rate=self.rate,
            prompt=self.prompt,
            output=self.output,
            spread=self.spread,
            seed=self.seed,
        )

    def cost(self) -> Cost:
        """The stated times, in microseconds."""
        return Cost(*(1e3 * each for each in self._times_ms().values()))

    def capacity(self) -> float:
        """Requests a second beyond which the queue grows without end under continuous batching: all
        slots full at every step. An answer of n tokens takes n - 1 steps in a slot, and its prefill
        holds up everybody."""
        outputs = [each.output for each in self.coming()]
        steps = sum(outputs) / len(outputs) - 1
        each_us = self.cost().prompt_us(self.prompt)
        each_us += steps * self.cost().decode_us(self.slots) / self.slots
        return 1e6 / each_us if each_us else float("inf")

    def predict(self) -> Served:
        """The same requests on a clock that jumps. Raises ValueError where no pace is stated."""
        if not self.paced:
            raise ValueError(
                "a prediction needs a stated pace, and paced=False runs at the machine's own. Give "
                "paced=True"
            )
        return _predicted(self)

    def served(self, visits: list[Visit], origin: str, notes: tuple[str, ...] = ()) -> Served:
        """Visits as the noun."""
        return Served(visits=tuple(sorted(visits)), slots=self.slots, origin=origin, notes=notes)

    # --- what real ranks do ---

    def longest(self) -> int:
        """Tokens that a slot's cache has room for: the longest request's; its last token is never
        looked at."""
        return self.prompt + max(each.output for each in self.coming()) - 1

    def refusal(self, language: str | None = None) -> str | None:
        """Why it can't be run: too large, or too long, for this machine."""
        say = _WORDS[words.spoken_in(language)]
        given = {
            "ranks": self.ranks,
            "slots": self.slots,
            "requests": self.requests,
            "tokens": self.longest(),
        }
        for what, most in MOST_REAL.items():
            if given[what] > most:
                return say["many"].format(most=most, what=say[what], given=given[what])
        seconds = max(each.left_us for each in _predicted(self).visits) / 1e6
        if seconds > MOST_SECONDS:
            return say["long"].format(most=MOST_SECONDS, given=seconds)
        return None

    def start(self) -> "Job":
        """The server, in the background: real forwards of a small transformer cut among the ranks,
        requests admitted when their time has come."""
        from labkit.serving import batching_run

        return batching_run.start(self)

    def measured(self, run: "Run") -> Served:
        """What the server's clock said."""
        visits = [Visit(*each) for each in run[0]["times_us"]]
        return self.served(visits, run.origin, run.notes)

    def difference(self, predicted: Served, measured: Served) -> Difference:
        """Mean latency, by what a request waits for."""
        before = predicted.spent_us()
        after = measured.spent_us()
        return Difference(
            of=words.in_every("of", _WORDS),
            causes={part: after[part] - before[part] for part in PARTS},
            names={part: words.in_every(part, _WORDS) for part in PARTS},
        )

    def drawn(
        self,
        predicted: Served,
        measured: Served | None = None,
        language: str | None = None,
        *,
        span_us: float | None = None,
    ) -> "Picture":
        """The queue and the slots in time; of a prediction, or of both."""
        from labkit.serving import picture

        return picture.slots(
            predicted,
            measured,
            title={code: self.title(code) for code in words.LANGUAGES},
            span_us=span_us or 0.0,
            language=language,
        )

    def title(self, language: str | None = None) -> str:
        """Policy, rate and slots."""
        say = _WORDS[words.spoken_in(language)]
        return say["title"].format(policy=say[self.policy], rate=self.rate, slots=self.slots)


@functools.lru_cache(maxsize=128)
def _predicted(load: Load) -> Served:
    policy = POLICIES[load.policy]
    patience_us = 1e3 * load.patience_ms
    visits = queue.simulate(load.coming(), policy, load.slots, load.cost(), patience_us)
    return load.served(visits, "simulated")
