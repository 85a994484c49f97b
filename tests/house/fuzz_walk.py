"""What is fuzzed: every public function of the package, and the data classes with their members.
They are found by walking, so a new one is fuzzed at once, or stands in EXCUSED with its reason."""

import dataclasses
import functools
import importlib
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import house

import labkit

PACKAGE = Path(labkit.__file__).parent

MACHINE = "lives among processes and sockets: test_launcher holds it under injected faults"
WATCH = "reads what the watch over ranks wrote: test_launcher makes each ending happen"
LIVE = "takes live torch objects, or what ranks returned: its own test runs it there"
ASKS = "takes nothing and asks this machine: its own test"
GRADES = "takes a learner's function and runs it on ranks: its own test passes wrong answers"
BUILDER = "an entry of ALGORITHMS: ``plan`` calls it, and checks for it"
PART = "a part of a board, made by it: the board's function is fuzzed"
DRAWN = "a part of a picture: the function that draws it is fuzzed"
PHASE = "a phase of a step: ``moments.predict`` goes through all of them, and is fuzzed"
INSIDE = "made and read inside its module: the function that gives it away is fuzzed"
PLANNED = "a part of a plan's numbers: ``Plan``, ``search``, ``fit`` and ``validate`` are fuzzed"
READ = "reads a file of the package's own: test_words gives it others"
STUDIES = ("judged", "kept", "llama", "perception", "sensors", "small", "story")
REASONS = {
    READ: ("words.entries",),
    MACHINE: (
        "heterogeneous.edge.Cut.start",
        *("launching.fork", "launching.nodes", "classroom"),
        "cluster.one_machine",
        "devices.rung.Rung.from_json",
        "launching.rank_state",
        "launching.job",
        "launching.rank",
        "launching.verdicts.introspect",
        *("debugging.health", "machine.resources.is_stopped"),
        "devices.library",
    ),
    WATCH: (
        "launching.verdicts.verdict",
        "launching.verdicts.outcome",
        "launching.verdicts.diagnosis",
        "launching.verdicts.disagreement",
        "debugging.broken_run.places",
        "debugging.picture.calls",
    ),
    LIVE: (
        *("data_parallel.server_run.stamped", "data_parallel.ways_run.compare_ways"),
        *(f"cluster.{each}_run" for each in ("commands", "examine", "node_loss", "two_level")),
        *(f"cluster.{each}" for each in ("matrix", "matrix_picture", "survivor_run", "two_level")),
        *(f"heterogeneous.edge_run.{each}" for each in ("frames", "pack", "unpack")),
        *(f"heterogeneous.run.{each}" for each in ("here", "speeds")),
        "data_parallel.server_run.finish",
        *(f"case_studies.{each}_run" for each in STUDIES),
        *(f"large_batch.{each}_run" for each in ("digits", "layerwise")),
        "large_batch.run.train",
        *("profiling.run", "profiling.proof"),
        "large_batch.run.average_gradients",
        *(f"scaling.{each}run" for each in ("input.feeding_", "peak_", "")),
        "scaling.scalars_run.monitored",
        *(f"sharding.{each}engines" for each in ("", "deepspeed_")),
        *(f"fsdp.{each}_run" for each in ("weights", "training")),
        "measure.memory",
        "model",
        "measure.pace",
        "measure.traffic",
        "measure.trace.record",
        "measure.trace.span",
        "measure.labels",
        "debugging.faults",
        *(f"recovery.{each}_run" for each in ("killed", "restarted", "saving")),
        *(f"recovery.{each}" for each in ("checkpoint", "incremental", "sealed_folder")),
        "recovery.training_state",
        "collectives.paced_run",
        "collectives.run.execute",
        "collectives.run.library",
        "sharding.run.timeline",
        "sharding.run.Trainer",
        "sharding.run.wrap",
        "accelerate.run",
        "accelerate.dealing_run.deal",
        "accelerate.script_run.run_script",
        "accelerate.script_run.start_script",
        "communication.compressed_run.largest_with_feedback",
        "communication.compressed_run.report",
        "debugging.cure_run",
        "experts.whole_run",
        "experts.parallel_run",
        "long_context.deepspeed_run",
        "long_context.ring_run",
        "long_context.ulysses_run",
        "mesh_3d.deepspeed_run",
        "mesh_3d.paced_run",
        "mesh_3d.run",
        "mesh_3d.torch_run",
        "accelerate.engines",
        "planner.need_run",
        "planner.real.decoder_run",
        "planner.real.fake_run",
        "planner.real.here_run",
        "planner.real.module_run",
        "planner.real.seen_run",
        "planner.strategies_run",
        "pipeline.pipedream_run.Flying",
        "tensor_parallel.by_hand_run",
        "tensor_parallel.megatron_run",
        "tensor_parallel.run",
        "tensor_parallel.torch_run",
        "tensor_parallel.whole_run",
        "serving.batching_run",
        "serving.cached_run",
        "serving.dispatch_run.dispatched",
        "serving.run",
        *(f"zero.{each}_run" for each in ("by_hand", "config")),
        *(f"your_own.{each}" for each in ("run", "cut_run")),
        *("experiment.keep", "precision.watched_run", "precision.formats.survives"),
        "mesh.Mesh.device_mesh",
        "devices.place",
        "devices.mistakes",
        "devices.pretend",
        "devices.torch_pretend",
        "devices.through_host",
    ),
    "deletes files of /dev/shm: test_sockets": ("machine.ops.free_shared_memory",),
    ASKS: (
        "devices.library",
        "machine.ops",
        "machine.hardware",
        "machine.doctor.examine",
        "machine.resources.summary",
        "machine.resources.cores",
        "machine.resources.total_bytes",
        "machine.resources.available_bytes",
        "machine.resources.num_gpus",
        "machine.resources.free_port",
        "machine.resources.loopback",
        "machine.resources.gloo_environment",
        "launching.launcher.warm",
        "widgets.gallery",
    ),
    PART: (
        "widgets.flipbook",
        "widgets.live",
        "widgets.trial",
        "widgets.turning",
        "widgets.picture",
        "widgets.names",
        "planner.models",
        "planner.need.small_bill",
        "planner.need.Share",
        "planner.strategies.Expected",
        "planner.strategies.predicted",
        "accelerate.update.differing",
        "zero.stages.Moves",
        "experiment.Comparison",
    ),
    PLANNED: (
        "planner.plan.compute",
        "planner.plan.memory",
        "planner.plan.steptime",
        "planner.plan.search.evaluate",
        "planner.plan.search.layouts",
        "planner.plan.search.as_plan",
        "planner.plan.search.powers",
        "planner.plan.search.Candidate",
        "planner.plan.cluster.Gpu",
        "planner.plan.shape.Product",
        "planner.trust.judge",
        "planner.trust.report",
        "planner.trust.fit.Fit",
        "planner.trust.fit.engine",
        "planner.trust.fit.label",
        "planner.trust.fit.predicted_us",
        "planner.trust.fit.log_errors",
        "planner.trust.validate.Validation",
        "planner.trust.validate.shipped",
        "planner.trust.validate.predicted_bytes",
        "planner.trust.validate.fit_memory",
    ),
    DRAWN: (
        *("pictures.axes", "recovery.strip_picture.Strip", "recovery.how_often.Times"),
        "pictures.bar_groups",
        "pictures.figures",
        "pictures.slices",
        "pictures.strips",
        "pictures.drawing.Picture",
        "accelerate.picture",
        "profiling.picture",
        *(f"planner.picture.{each}" for each in ("holders", "layers_of", "sequences_of")),
        "planner.picture.stacked",
        "planner.plan.picture.badge",
        "planner.plan.picture.drawn",
        "planner.plan.picture.held",
        "planner.plan.picture.in_rows",
        "planner.plan.picture.in_words",
        "planner.plan.picture.spent",
    ),
    PHASE: ("sharding.phases", "sharding.zero_phases", "sharding.fsdp_phases"),
    "takes a policy, a function: test_queue gives it wrong ones": (
        "serving.queue.serve",
        "serving.queue.simulate",
    ),
    "varies a field that a keyword names: test_experiment": ("sweeps",),
    INSIDE: (
        "experts.routing.places",
        "experts.routing.seen",
        "long_context.pieces.pairs",
        "long_context.pieces.work",
        "long_context.pieces.ring",
        "long_context.pieces.ulysses",
        "mesh_3d.held",
        "mesh_3d.limits",
        "mesh_3d.messages",
        "mesh_3d.times",
        "profiling.graph",
        "profiling.kinds.Slow",
        "profiling.program",
        "profiling.shares",
        "profiling.simulation",
        "planner.real.counted",
        "planner.real.tensors",
        "words.in_every",
        "pipeline.difference.Span",
        "pipeline.difference.Step",
        "measure.trace_rows",
        "serving.phases.Phase",
        "serving.queue.Cost",
        "serving.queue.Floor",
        "serving.queue.continuous",
        "serving.queue.static",
        "serving.served.Figures",
        "tensor_parallel.cut.Piece",
        "tensor_parallel.cut.placed",
        "tensor_parallel.cut.rank_elements",
        "tensor_parallel.messages",
        "tensor_parallel.times",
    ),
    "its title may have letters that no font has: test_shown": ("timeline.Timeline.bundle",),
    "takes a board: test_book has each of them": ("widgets.export",),
    "the main job from end to end: test_demo": ("pipeline.demo",),
    "runs in front of a script, and reads what that wrote: test_record": (
        "measure.traced",
        "profiling.recording",
    ),
    "the command line: test_main, test_plan_trust": ("__main__", "planner.plan.command"),
    "its lines are run: test_script": ("launching.script_command",),
    "made of what ranks returned, or read from a survey's folder: tests of survey": (
        "survey.command",
        "cluster.command",
        "survey.picture",
        "survey.readings",
        "survey.report_picture",
        "survey.run",
        "survey.summary.Summary",
        "survey.summary.beside",
        "survey.trials.Trial",
    ),
    "runs in front of a script: test_on_pretend": (
        "devices.on_pretend",
        "launching.script.run_here",
    ),
    "deletes a folder": ("launching.run.remove",),
    "test_strangers and test_run: what a stranger's folder holds": (
        "launching.run.Run",
        "launching.saved",
        "shards.Shards.from_json",
        "footprint.Footprint.from_json",
    ),
    BUILDER: (
        "collectives.algorithms.ring",
        "collectives.algorithms.hierarchical",
        "collectives.algorithms.pairwise",
        "collectives.algorithms.direct",
        "collectives.algorithms.star",
        "collectives.algorithms.tree",
        "collectives.algorithms.chain",
        "collectives.algorithms.double_tree",
    ),
}
EXCUSED = {name: why for why, names in REASONS.items() for name in names}


def modules() -> Iterator[types.ModuleType]:
    """Every module of the package, fronts left out: they only offer what others hold."""
    for name in house.sources(PACKAGE):
        if house.role(name) != "front" and not name.endswith("__init__"):
            yield importlib.import_module(f"labkit.{name}")


def is_data(thing: Any) -> bool:
    """A data class or a named tuple."""
    named_tuple = isinstance(thing, type) and hasattr(thing, "_fields")
    return dataclasses.is_dataclass(thing) or named_tuple


def public() -> Iterator[tuple[str, Any]]:
    """(name, callable) of all that the package offers: functions, classes, and of data classes
    their members."""
    for module in modules():
        place = module.__name__.removeprefix("labkit.")
        for name, thing in vars(module).items():
            here = getattr(thing, "__module__", None) == module.__name__
            callable_here = here and (inspect.isclass(thing) or inspect.isfunction(thing))
            if name.startswith("_") or not callable_here:
                continue
            yield f"{place}.{name}", thing
            if is_data(thing) and not on_screen(place):
                yield from _members(f"{place}.{name}", thing)


def on_screen(place: str) -> bool:
    """Whether a module is a board or a part of the kit that boards are made of."""
    return house.role(place) in ("board", "stage widgets")


def _members(label: str, thing: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a data class."""
    for member, what in vars(thing).items():
        fn = getattr(what, "fget", None) or getattr(what, "__func__", None) or what
        if member.startswith("_") or not inspect.isfunction(fn):
            continue
        bound = functools.partial(fn, thing) if isinstance(what, classmethod) else fn
        yield f"{label}.{member}", bound


def reason(label: str) -> str | None:
    """Why a callable is not fuzzed: an excuse for it, or for what it stands in."""
    parts = label.split(".")
    for end in range(len(parts), 0, -1):
        place = ".".join(parts[:end])
        if place in EXCUSED:
            return EXCUSED[place]
        if house.role(place) in ("check", "stage check"):
            return GRADES
    if parts[-1] == "measured":
        return LIVE
    if on_screen(label.rpartition(".")[0]) and parts[-1].endswith("Board"):
        return PART
    return None


PUBLIC = dict(public())
FUZZED = {label: thing for label, thing in PUBLIC.items() if not reason(label)}
