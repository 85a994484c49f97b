"""``batching()``: requests by chance, a policy, slots: the queue in time, latency and throughput,
then run. ``kv_cache()``: whose keys and values lie where, and what a step hands to others."""

from typing import Any, ClassVar

from labkit.pictures.drawing import Picture
from labkit.pictures.painters import svg
from labkit.serving.generation import Generation
from labkit.serving.load import Load
from labkit.serving.served import Served
from labkit.units import format_bytes, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial

__all__ = ["batching", "kv_cache"]


class BatchingBoard(Trial):
    """The widget: pages by rate; ``run()`` serves the load on real ranks."""

    options: ClassVar = {
        "rate": (2.0, 5.0, 8.0, 10.0, 12.0, 15.0, 20.0, 40.0),
        "policy": ("static", "continuous"),
        "slots": (1, 2, 4, 8),
        "spread": (0.0, 0.4, 0.8, 1.2),
    }
    dropdowns = ("policy",)
    words = (
        ("rate", "requests a second"),
        ("policy", "batching"),
        ("static", "static: enter and leave together"),
        ("continuous", "continuous: leave when done"),
        ("slots", "slots"),
        ("spread", "how unequal answers are"),
        (
            "predicted",
            "Simulated: half of the requests take less than {}, 19 of 20 less than {}; {:.0f} "
            "tokens a second.",
        ),
        (
            "measured",
            "Measured: half of the requests take less than {}, 19 of 20 less than {}; {:.0f} "
            "tokens a second.",
        ),
        (
            "other",
            "The same requests under the other policy, simulated: 19 of 20 less than {}, {:.0f} "
            "tokens a second.",
        ),
        (
            "capacity",
            "With full slots continuous batching serves up to {:.1f} requests a second; beyond "
            "that the queue grows as long as requests come.",
        ),
        (
            "stated",
            "Stated, not measured: a token of a prompt takes {}, a step {} and {} for each request "
            "inside.",
        ),
        ("ran", "Of {} answers, {} differ from one process that serves one request at a time."),
    )

    def scene(self) -> Picture:
        """The picture as it stands."""
        return self._scene(self.step)

    def _scene(self, step: Load) -> Picture:
        span_us = max(self.prediction(each).span_us for each in self._both(step))
        return step.drawn(self.prediction(step), self.found(step), self.language, span_us=span_us)

    def _both(self, step: Load) -> tuple[Load, Load]:
        """The load under its policy, and under the other one: they share an axis."""
        if step.policy == "static":
            return step, step.but(policy="continuous", patience_ms=0.0)
        return step, step.but(policy="static")

    def page(self, step: Load, at: None) -> str:
        """Queue and slots, and what it comes to."""
        say = self._words
        notes = [say["predicted"].format(*_told(self.prediction(step)))]
        if (measured := self.found(step)) is not None:
            notes.append(say["measured"].format(*_told(measured)))
        _, p95, tokens = _told(self.prediction(self._both(step)[1]))
        notes.append(say["other"].format(p95, tokens))
        notes.append(say["capacity"].format(step.capacity()))
        times_us = (1e3 * step.prefill_ms, 1e3 * step.step_ms, 1e3 * step.sequence_ms)
        notes.append(say["stated"].format(*map(format_us, times_us)))
        if run := self.ran(step):
            notes.append(say["ran"].format(len(run[0]["tokens"]), run[0]["num_differing"]))
        return svg.html(self._scene(step)) + paragraphs(*notes)


class CacheBoard(Trial):
    """The widget: pages by ranks; ``run()`` answers on real ranks and weighs their caches."""

    options: ClassVar = {
        "ranks": (1, 2, 3, 4),
        "way": ("tensor", "pipeline"),
        "requests": (1, 4, 8),
        "output": (16, 64, 128),
        "heads": (4, 8),
    }
    dropdowns = ("way",)
    words = (
        ("ranks", "ranks"),
        ("way", "cut"),
        ("alone", "not at all"),
        ("tensor", "by heads"),
        ("pipeline", "by layers"),
        ("requests", "requests"),
        ("output", "tokens of an answer"),
        ("heads", "heads"),
        ("token", "A token keeps {} in all layers; a request {}."),
        ("rank", "The fullest rank has {}."),
        ("sums", "A step hands {} to all-reduces, the prefill {}."),
        ("hands", "The stages hand the stream on; nothing is summed."),
        (
            "measured",
            "Measured: {} on the fullest rank; of {} answers, {} differ from one process that has "
            "no cache.",
        ),
    )

    def _at(self, *indices: int) -> tuple[Any, Any]:
        """One rank has the whole model, whatever the cut."""
        given = {}
        for (name, values), index in zip(self._choices.items(), indices, strict=True):
            given[name] = values[index]
        if given["ranks"] == 1:
            given["way"] = "alone"
        elif given["way"] == "alone":
            given["way"] = "tensor"
        return self.experiment.but(**given), None

    def scene(self) -> Picture:
        """The picture as it stands."""
        return self._held(self.step)

    def _held(self, step: Generation) -> Picture:
        return step.drawn(self.prediction(step), self.found(step), self.language)

    def page(self, step: Generation, at: None) -> str:
        """The cache of each rank, and what is handed on."""
        say = self._words
        predicted = self.prediction(step)
        held = self._held(step)
        each = step.cache_bytes_of_request()
        notes = [say["token"].format(format_bytes(each / step.kept), format_bytes(each))]
        notes.append(say["rank"].format(format_bytes(float(predicted.rank_bytes.max()))))
        if step.payload():
            sums = (step.payload(), step.payload(step.prompt))
            told = (format_bytes(found["all_reduce"]) for found in sums)
            notes.append(say["sums"].format(*told))
        elif step.way == "pipeline":
            notes.append(say["hands"])
        if run := self.ran(step):
            most = max(result["cache_bytes"] for result in run)
            differing = max(result["num_differing"] for result in run)
            notes.append(say["measured"].format(format_bytes(most), step.requests, differing))
        return svg.html(held) + paragraphs(*notes)


def _told(served: Served) -> tuple[str, str, float]:
    """Latency at 50 % and 95 %, tokens a second."""
    found = served.figures()
    p50, p95 = (format_us(each) for each in (found.latency_p50_us, found.latency_p95_us))
    return p50, p95, found.tokens_per_s


def board(step: Load | Generation, language: str | None = None) -> Trial:
    """The widget of a load, or of answers. Raises ValueError for a load without a stated pace:
    nothing is predicted of it."""
    if isinstance(step, Generation):
        return CacheBoard(step, language)
    step.predict()
    return BatchingBoard(step, language)


def batching(
    language: str | None = None,
    *,
    rate: float = 10.0,
    policy: str = "static",
    slots: int = 4,
    spread: float = 0.8,
) -> BatchingBoard:
    """Static against continuous batching: requests come by chance, answers are unequal, and the
    queue shows what a policy makes of it; in English or "zh"."""
    return BatchingBoard(Load(rate=rate, policy=policy, slots=slots, spread=spread), language)


def kv_cache(
    language: str | None = None, *, num_ranks: int = 2, way: str = "tensor", requests: int = 4
) -> CacheBoard:
    """The KV cache of a small model on ranks that share its heads or its layers; in English or
    "zh"."""
    step = Generation(ranks=num_ranks, way=way, requests=requests)
    return CacheBoard(step, language)
