"""``zero_stages()`` and ``offload_flow()``: what ZeRO shards and what offload moves, predicted,
then read from a live DeepSpeed engine."""

from collections.abc import Sequence
from typing import Any, ClassVar

from labkit.pictures import bytes_held
from labkit.pictures.drawing import Picture
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.sharding import picture, states
from labkit.shards import Shards, differences
from labkit.units import format_bytes, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial
from labkit.words import LANGUAGES, WORDS, catalogue, in_every
from labkit.zero.offload_run import Taken
from labkit.zero.offload_times import ADAM_BYTES, Phase, tokens_that_hide
from labkit.zero.picture import times
from labkit.zero.stages import MODELS, MODES, Offload, Stages

__all__ = ["offload_flow", "zero_stages"]

_WORDS = (
    ("ranks", "ranks"),
    ("stage", "stage"),
    ("model", "model"),
    ("recipe", "recipe"),
    ("small", "small model"),
    (
        "bill",
        "Per rank, by the formula: {} = {}; a rank of DDP needs {}, {:.2f} times as much.",
    ),
    (
        "sends",
        "A step of one microbatch has to send {} per rank at least ({:.2f} times DDP).",
    ),
    ("measured", "Measured on the live engine: {}."),
    ("same", "every slice is the predicted one"),
    ("other", "{} slices differ from the predicted ones"),
    (
        "payload",
        "Handed to collectives in that step (microbatches: {}): {}. On the wire: {} per rank.",
    ),
    (
        "gloo",
        "The wire carries more than is needed: DeepSpeed's stages 1 and 2 call all-reduce here, "
        "and gloo runs a "
        "reduce-scatter as an all-reduce.",
    ),
    ("phase", "phase"),
    ("all", "all"),
    ("forward", "forward"),
    ("backward", "backward"),
    ("step", "update"),
    ("mode", "offloaded"),
    ("zero2", "ZeRO 2: optimizer"),
    ("zero3", "ZeRO 3: optimizer"),
    ("zero3 all", "ZeRO 3: optimizer and parameters"),
    ("gb_per_s", "link (GB/s)"),
    ("tokens", "tokens per microbatch"),
    ("microbatches", "microbatches"),
    ("tflops", "device (TFLOP/s)"),
    ("host_gb_per_s", "host's memory (GB/s)"),
    (
        "host_note",
        "One rank, between two microbatches. Bytes by DeepSpeed's rules, times by the stated "
        "speeds.",
    ),
    (
        "layer_note",
        "One rank, between two microbatches; a layer is on the device while it computes. "
        "Bytes by DeepSpeed's rules, times by the stated speeds.",
    ),
    (
        "times",
        "At best all go on at once: a phase then takes as long as the slowest of the three.",
    ),
    (
        "hides",
        "From {:,.0f} tokens of a rank on, the transfers of forward and backward hide behind their "
        "computing.",
    ),
    (
        "adam",
        "The host's update does not depend on tokens: it reads and writes {} bytes of host memory "
        "per parameter.",
    ),
    (
        "clocked",
        "On this machine, rank 0: the link carried {} in {:,.0f} copies, {} by the clock. That is "
        "predicted to be {} and {}. A copy ends a little late, so many small ones take longer.",
    ),
    (
        "in_turn",
        "A pretend device does one thing after another, and a phase's copies are drawn together. "
        "The rest of the update is drawn as the host's.",
    ),
    (
        "unseen",
        "This run's device gives no counts of its copies: only the phases are measured.",
    ),
    ("here", "The same on this machine"),
)


class _Engines(Trial):
    """What both boards do after a run: compare shards, and tell what was sent."""

    def _told(self, step: Stages | Offload, predicted: Shards, held: Shards) -> list[str]:
        """What a run said: how near the prediction was, and what was sent."""
        say = self._words
        first = self.ran(step)[0]
        off = len(differences(predicted, held))
        lines = [say["measured"].format(say["other"].format(off) if off else say["same"])]
        payload = WORDS[self.language]["comma"].join(
            f"{name} {format_bytes(num)}" for name, num in first["payload_bytes"].items()
        )
        sent = first["sent_bytes"]
        wire = "?" if sent is None else format_bytes(sent)
        if payload:
            lines.append(say["payload"].format(self._microbatches(step), payload, wire))
        if step.ranks > 1:
            lines.append(say["gloo"])
        return lines

    def _microbatches(self, step: Stages | Offload) -> int:
        """How many of them a run of it has."""
        return step.real.microbatches


class ZeroBoard(_Engines):
    """The widget: pages by ranks; ``run()`` trains the small model with DeepSpeed and reads its
    shards."""

    options: ClassVar = {
        "ranks": (1, 2, 3, 4, 8, 16, 32, 64),
        "stage": (0, 1, 2, 3),
        "model": tuple(MODELS),
        "recipe": tuple(states.RECIPES),
    }
    dropdowns = ("stage", "model", "recipe")
    words = _WORDS

    def written(self, name: str, value: Any) -> str:
        """Stage 0 is DDP."""
        return "0 (DDP)" if name == "stage" and not value else super().written(name, value)

    def scene(self) -> Picture:
        """The picture as it stands."""
        return self._drawn(self.step)

    def _drawn(self, step: Stages) -> Picture:
        return step.drawn(self.prediction(step), self.found(step), self.language)

    def page(self, step: Stages, at: None) -> str:
        """The picture and the bill; after a run, the volume and what was measured. (Before one a
        reader is asked for the volume.)"""
        held = self.found(step)
        notes = [self._bill(step)]
        if held is not None:
            notes += [self._volume(step)] if step.ranks > 1 else []
            notes += self._told(step, self.prediction(step), held)
        return svg.html(self._drawn(step)) + paragraphs(*notes)

    def _bill(self, step: Stages) -> str:
        """A rank's states by the formula, beside those of DDP."""
        size = step.size
        held = states.state_bytes(size, step.ranks, step.stage, step.recipe)
        bill = states.by_category(held)
        total = sum(bill.values())
        ddp = sum(states.state_bytes(size, 1, 0, step.recipe).values())
        names = bytes_held.WORDS[self.language]
        parts = " + ".join(f"{names[part]} {format_bytes(num)}" for part, num in bill.items())
        return self._words["bill"].format(
            format_bytes(total), parts, format_bytes(ddp), ddp / total
        )

    def _volume(self, step: Stages) -> str:
        """What a rank sends in a step at least, beside DDP."""
        gradient_bytes = 2 * step.size
        sent, ddp = (
            sum(states.step_volume(gradient_bytes, step.ranks, stage).values())
            for stage in (step.stage, 0)
        )
        return self._words["sends"].format(format_bytes(sent), sent / ddp)


class OffloadBoard(_Engines):
    """The widget: pages by tokens; ``run()`` trains with DeepSpeed's offload, clocks its phases and
    reads which shard lies where."""

    options: ClassVar = {
        "tokens": (512, 1024, 2048, 4096, 8192),
        "phase": ("all", "forward", "backward", "step"),
        "mode": MODES,
        "model": tuple(MODELS),
        "ranks": (1, 2, 4, 8),
        "microbatches": (1, 2, 4),
        "tflops": (50.0, 150.0, 400.0),
        "gb_per_s": (0.05, 12.0, 25.0, 50.0, 450.0),
        "host_gb_per_s": (25.0, 50.0, 100.0, 200.0, 400.0),
    }
    view = "phase"
    dropdowns = ("phase", "mode", "model")
    words = _WORDS

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return self._flow(self.step, self.at)

    def _flow(self, step: Offload, phase: str) -> Sketch:
        """Device, host, and what moves between them."""
        found = self.prediction(step)
        note = "host_note" if step.mode == "zero2" else "layer_note"
        return picture.flow(
            found.moves,
            found.device,
            found.host,
            step.gb_per_s,
            title={code: step.title(code) for code in LANGUAGES},
            marked="" if phase == "all" else phase,
            note=in_every(note, catalogue(_WORDS)),
            language=self.language,
        )

    def _times(self, step: Offload) -> Sketch:
        """The step in time; the axis stays while tokens are turned."""
        longest = step.but(tokens=self.options["tokens"][-1])
        span_us = sum(each.hidden_us for each in self.prediction(longest).phases)
        found = self.prediction(step).phases
        return times(found, span_us=span_us, language=self.language)

    def page(self, step: Offload, at: str) -> str:
        """The flow and the times; below them what a run took, and its shards by the device that
        they lie on."""
        pictures = svg.html(self._flow(step, at)) + svg.html(self._times(step))
        notes = [*self._bounds(step)]
        held = self.found(step)
        if held is None:
            return pictures + paragraphs(*notes)
        run = self.ran(step)
        clocked = run[0]["phases"]
        notes += self._clocked(step, clocked)
        pictures += svg.html(self._measured(clocked, run.notes))
        if step.keeps_between:
            predicted = step.real.predict()
            notes += self._told(step, predicted, held)
            pictures += svg.html(bytes_held.shards(predicted, held, language=self.language))
        return pictures + paragraphs(*notes)

    def _bounds(self, step: Offload) -> list[str]:
        """What hides behind what."""
        say = self._words
        tokens = step.tokens * step.microbatches
        enough = tokens_that_hide(self.prediction(step).phases, tokens)
        return [say["times"], say["hides"].format(enough), say["adam"].format(ADAM_BYTES)]

    def _measured(self, clocked: list[Taken], notes: Sequence[str]) -> Sketch:
        """What the phases of a run took; the copies of each together."""
        found = [Phase(each.name, *_spent(each, each.name == "step")) for each in clocked]
        return times(
            found,
            in_turn=True,
            badge=", ".join(("measured", *notes)),
            title=in_every("here", catalogue(_WORDS)),
            language=self.language,
        )

    def _clocked(self, step: Offload, clocked: list[Taken]) -> list[str]:
        """What the link did, beside what was predicted of it."""
        copies = sum(each.copies for each in clocked)
        if not copies:
            return [self._words["unseen"]]
        found = self.prediction(step)
        told = self._words["clocked"].format(
            format_bytes(sum(each.num_bytes for each in clocked)),
            copies,
            format_us(sum(each.link_us for each in clocked)),
            format_bytes(sum(each.num_bytes for each in found.moves)),
            format_us(sum(each.link_us for each in found.phases)),
        )
        return [told, self._words["in_turn"]]


def _spent(taken: Taken, on_host: bool) -> tuple[float, float, float]:
    """What device, link and host did of a phase's time."""
    rest_us = taken.took_us - taken.link_us
    return (0.0, taken.link_us, rest_us) if on_host else (rest_us, taken.link_us, 0.0)


def board(step: Stages | Offload, language: str | None = None) -> ZeroBoard | OffloadBoard:
    """The widget of either experiment."""
    return (ZeroBoard if isinstance(step, Stages) else OffloadBoard)(step, language)


def zero_stages(
    language: str | None = None,
    *,
    stage: int = 2,
    num_ranks: int = 4,
    model: str = "small",
    recipe: str = "mixed",
) -> ZeroBoard:
    """Which rank holds what in the stages of ZeRO, and what it costs and saves; in English or
    "zh"."""
    step = Stages(stage=stage, ranks=num_ranks, model=model, recipe=recipe)
    return ZeroBoard(step, language)


def offload_flow(
    language: str | None = None,
    *,
    mode: str = "zero2",
    num_ranks: int = 2,
    model: str = "small",
    tokens: int = 2048,
    gb_per_s: float = 25.0,
) -> OffloadBoard:
    """What crosses the link between device and host in each phase of a step when DeepSpeed
    offloads, and how long that takes beside computing and the host's update."""
    step = Offload(mode=mode, ranks=num_ranks, model=model, tokens=tokens, gb_per_s=gb_per_s)
    return OffloadBoard(step, language)
