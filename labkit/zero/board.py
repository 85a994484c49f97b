"""``zero_stages()`` and ``offload_flow()``: what ZeRO shards and what offload moves, predicted,
then read from a live DeepSpeed engine."""

from dataclasses import dataclass

from labkit.launching.job import Job
from labkit.pictures import bytes_held
from labkit.pictures.painters import svg
from labkit.pictures.scene import Scene
from labkit.pictures.sketch import Said, Sketch
from labkit.sharding import partition, picture, states
from labkit.sharding import run as sharding_run
from labkit.shards import Shards, differences
from labkit.units import format_bytes
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, chosen, selectors
from labkit.words import WORDS, both, catalogue, spoken_in, to_say

__all__ = ["offload_flow", "zero_stages"]

MODELS = {"small": 0, "7B": 7_000_000_000, "70B": 70_000_000_000, "175B": 175_000_000_000}
"""Parameters of the models to look at; "small" is the one that runs here, tensor by tensor."""
MOST_RANKS = 4
"""as many ranks as a run of a board starts"""
_STAGES = {
    "ranks": (1, 2, 3, 4, 8, 16),
    "stage": (0, 1, 2, 3),
    "model": tuple(MODELS),
    "recipe": tuple(states.RECIPES),
}
_OFFLOADS = {
    "phase": ("all", "forward", "backward", "step"),
    "mode": ("zero2", "zero3", "zero3 all"),
    "model": tuple(MODELS),
    "ranks": (1, 2, 4, 8),
    "link": (12.0, 25.0, 50.0, 450.0),
}
_HOST_NOTE = to_say(
    "One rank; one microbatch. Bytes by DeepSpeed's rules, times by the stated link."
)
_WORDS = (
    ("ranks", "ranks"),
    ("stage", "stage"),
    ("model", "model"),
    ("recipe", "recipe"),
    ("small", "small model"),
    ("title", "ZeRO {stage}, {ranks} ranks, {model}"),
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
        "Handed to collectives in that step (two microbatches): {}. On the wire: {} per rank.",
    ),
    (
        "gloo",
        "The wire carries more than is needed: DeepSpeed's stages 1 and 2 call all-reduce here, "
        "and gloo runs a "
        "reduce-scatter as an all-reduce.",
    ),
    (
        "large",
        "a model of {} is here to be looked at: choose the small one",
    ),
    ("many", "a run starts up to {} ranks"),
    ("one", "DeepSpeed runs the recipe mixed here"),
    ("phase", "phase"),
    ("all", "all"),
    ("forward", "forward"),
    ("backward", "backward"),
    ("step", "update"),
    ("mode", "offloaded"),
    ("zero2", "ZeRO 2: optimizer"),
    ("zero3", "ZeRO 3: optimizer"),
    ("zero3 all", "ZeRO 3: optimizer and parameters"),
    ("link", "link (GB/s)"),
    ("flow", "Offload: {model}, {ranks} ranks"),
    (
        "host_run",
        "A run here is real, but on a CPU the host stands for the device: nothing crosses a link.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One position of the controls of ``zero_stages``."""

    ranks: int
    """data-parallel ranks"""
    stage: int
    """0 is DDP as DeepSpeed runs it"""
    model: str
    """a key of MODELS"""
    recipe: str
    """a key of ``states.RECIPES``"""

    @property
    def real(self) -> sharding_run.Setting:
        """The small model in DeepSpeed's engine of that stage."""
        return sharding_run.Setting(engine=f"zero{self.stage}", num_ranks=self.ranks)


class _Engines(Trial):
    """What both boards do after a run: compare shards, and tell what was sent."""

    def begin(self, setting: Setting) -> Job:
        """The small model with a real DeepSpeed engine."""
        return sharding_run.start(setting.real, timeout_s=120)

    def key(self, setting: Setting) -> sharding_run.Setting:
        """Another recipe or model needs another run."""
        return setting.real if setting.model == "small" else setting

    def _held(self, setting: Setting) -> Shards | None:
        """What the ranks held, once it has been run."""
        run = self.runs.get(self.key(setting)) if setting.model == "small" else None
        return sharding_run.measured(run) if run else None

    def _told(self, setting: Setting, predicted: Shards, held: Shards) -> list[str]:
        """What a run said: how near the prediction was, and what was sent."""
        say = self._words
        first = self.runs[self.key(setting)][0]
        off = len(differences(predicted, held))
        lines = [say["measured"].format(say["other"].format(off) if off else say["same"])]
        payload = WORDS[self.language]["comma"].join(
            f"{name} {format_bytes(num)}" for name, num in first["payload_bytes"].items()
        )
        sent = first["sent_bytes"]
        wire = "?" if sent is None else format_bytes(sent)
        if payload:
            lines.append(say["payload"].format(payload, wire))
        if setting.real.num_ranks > 1:
            lines.append(say["gloo"])
        return lines

    def reason(self, setting: Setting) -> str | None:
        """Why it can't run: too large, too many, another recipe."""
        if setting.model != "small":
            return self._words["large"].format(setting.model)
        if setting.ranks > MOST_RANKS:
            return self._words["many"].format(MOST_RANKS)
        return None


class ZeroBoard(_Engines):
    """The widget: pages by ranks; ``run()`` trains the small model with DeepSpeed and reads its
    shards."""

    def __init__(self, language: str | None = None, **start: object) -> None:
        language = spoken_in(language)
        words = spoken(_WORDS, language)
        shown = {
            "model": lambda name: words.get(name, name),
            "stage": lambda stage: f"{stage} (DDP)" if not stage else str(stage),
        }
        super().__init__(
            language, _WORDS, selectors(_STAGES, start, words, shown, ("stage", "model", "recipe"))
        )

    def setting_at(self, *indices: int) -> Setting:
        """What the controls say when they stand at these indices."""
        return chosen(Setting, _STAGES, indices)

    def predicted(self, setting: Setting) -> Shards:
        """Tensor by tensor for the small model under the recipe that runs, else one tensor of the
        model's size."""
        if setting.model == "small" and setting.recipe == "mixed":
            return sharding_run.predicted(setting.real)
        return partition.stage_shards(
            self._size(setting), setting.ranks, setting.stage, setting.recipe
        )

    def _size(self, setting: Setting) -> int:
        return MODELS[setting.model] or sum(unit.num_params for unit in setting.real.units())

    def reason(self, setting: Setting) -> str | None:
        """Also: DeepSpeed here runs one recipe."""
        why = super().reason(setting)
        if why is None and setting.recipe != "mixed":
            return self._words["one"]
        return why

    def _held(self, setting: Setting) -> Shards | None:
        """A run is of the recipe mixed."""
        return super()._held(setting) if setting.recipe == "mixed" else None

    def scene(self) -> Sketch | Scene:
        """The picture as it stands."""
        setting = self.setting
        return self._drawn(setting, self.predicted(setting), self._held(setting))

    def _drawn(self, setting: Setting, predicted: Shards, held: Shards | None) -> Sketch:
        title = _title("title", setting.model, stage=setting.stage, ranks=setting.ranks)
        return bytes_held.shards(predicted, held, title=title, language=self.language)

    def page(self, setting: Setting) -> str:
        """The picture, the bill and the volume."""
        predicted = self.predicted(setting)
        held = self._held(setting)
        notes = [self._bill(setting)]
        if setting.ranks > 1:
            notes.append(self._volume(setting))
        if held is not None:
            notes += self._told(setting, predicted, held)
        return svg.html(self._drawn(setting, predicted, held)) + paragraphs(*notes)

    def _bill(self, setting: Setting) -> str:
        """A rank's states by the formula, beside those of DDP."""
        size = self._size(setting)
        held = states.state_bytes(size, setting.ranks, setting.stage, setting.recipe)
        bill = states.by_category(held)
        total = sum(bill.values())
        ddp = sum(states.state_bytes(size, 1, 0, setting.recipe).values())
        names = bytes_held.WORDS[self.language]
        parts = " + ".join(f"{names[part]} {format_bytes(num)}" for part, num in bill.items())
        return self._words["bill"].format(
            format_bytes(total), parts, format_bytes(ddp), ddp / total
        )

    def _volume(self, setting: Setting) -> str:
        """What a rank sends in a step at least, beside DDP."""
        gradient_bytes = 2 * self._size(setting)
        sent, ddp = (
            sum(states.step_volume(gradient_bytes, setting.ranks, stage).values())
            for stage in (setting.stage, 0)
        )
        return self._words["sends"].format(format_bytes(sent), sent / ddp)


@dataclass(frozen=True, kw_only=True)
class Offload:
    """One position of the controls of ``offload_flow``."""

    phase: str
    """of the step: "all", "forward", "backward", "step\""""
    mode: str
    """"zero2", "zero3", or "zero3 all": parameters too"""
    model: str
    """a key of MODELS"""
    ranks: int
    """data-parallel ranks"""
    gb_per_s: float
    """of the link between device and host, each way"""

    @property
    def real(self) -> sharding_run.Setting:
        """The small model in DeepSpeed's engine, offloaded so."""
        engine, _, everything = self.mode.partition(" ")
        return sharding_run.Setting(
            engine=engine, num_ranks=self.ranks, offload=everything or "optimizer"
        )


class OffloadBoard(_Engines):
    """The widget: pages by phase; ``run()`` trains with DeepSpeed's offload and reads which shard
    lies where."""

    def __init__(self, language: str | None = None, **start: object) -> None:
        language = spoken_in(language)
        words = spoken(_WORDS, language)
        shown = {name: lambda value: words.get(value, value) for name in ("phase", "mode", "model")}
        super().__init__(
            language,
            _WORDS,
            selectors(_OFFLOADS, start, words, shown | {"link": "{:g}".format}, ("mode", "model")),
        )

    def setting_at(self, *indices: int) -> Offload:
        """What the controls say when they stand at these indices."""
        return chosen(Offload, _OFFLOADS, indices)

    def scene(self) -> Sketch | Scene:
        """The picture as it stands."""
        return self._flow(self.setting)

    def _flow(self, setting: Offload) -> Sketch:
        """Device, host, and what moves between them."""
        real = setting.real
        size = MODELS[setting.model] or sum(unit.num_params for unit in real.units())
        stage = int(real.engine[-1])
        device, host = partition.offload_places(size, setting.ranks, stage, real.offload)
        return picture.flow(
            states.offload_moves(size, setting.ranks, stage, real.offload),
            device,
            host,
            setting.gb_per_s,
            title=_title("flow", setting.model, ranks=setting.ranks),
            marked="" if setting.phase == "all" else setting.phase,
            note=both(_HOST_NOTE),
            language=self.language,
        )

    def page(self, setting: Offload) -> str:
        """The flow, and below it the shards of a run by the device that they lie on."""
        notes = [self._words["host_run"]]
        pictures = svg.html(self._flow(setting))
        held = self._held(setting)
        if held is not None:
            predicted = sharding_run.predicted(setting.real)
            notes += self._told(setting, predicted, held)
            pictures += svg.html(bytes_held.shards(predicted, held, language=self.language))
        return pictures + paragraphs(*notes)


def _title(key: str, model: str, **numbers: int) -> Said:
    """The title of a picture of a model, in both languages."""
    return {
        code: say[key].format(model=say.get(model, model), **numbers)
        for code, say in catalogue(_WORDS).items()
    }


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
    return ZeroBoard(language, ranks=num_ranks, stage=stage, model=model, recipe=recipe)


def offload_flow(
    language: str | None = None,
    *,
    mode: str = "zero2",
    num_ranks: int = 2,
    model: str = "small",
    gb_per_s: float = 25.0,
) -> OffloadBoard:
    """What crosses the link between device and host in each phase of a step when DeepSpeed
    offloads."""
    return OffloadBoard(
        language, phase="all", mode=mode, model=model, ranks=num_ranks, link=gb_per_s
    )
