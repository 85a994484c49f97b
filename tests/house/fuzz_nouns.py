"""Valid ones of every noun of ours that an argument may be."""

import functools
from pathlib import Path

import numpy as np
import torch

from labkit import experiment, footprint, mesh, shards, sweeps, tables, timeline
from labkit.accelerate import update
from labkit.case_studies import Perception, llama, small
from labkit.collectives import algorithms, calibrate_run, call, network, plans
from labkit.data_parallel import buckets
from labkit.data_parallel import step as data_parallel_step
from labkit.devices import rung
from labkit.experts import layer as experts_layer
from labkit.experts import routing
from labkit.heterogeneous import edge
from labkit.heterogeneous import stale_run as unequal_training
from labkit.heterogeneous import step as unequal_step
from labkit.large_batch import recorded as large_recorded
from labkit.large_batch import rules as large_rules
from labkit.large_batch import run as large_run
from labkit.launching import gate, run
from labkit.launching.nodes.places import Hosts, Slurm
from labkit.launching.verdicts import outcome
from labkit.long_context import attention
from labkit.machine import doctor, topology
from labkit.mesh_3d import step as mesh_step
from labkit.pictures import axes, curves, scene, sketch, style
from labkit.pipeline import schedules, simulation
from labkit.pipeline import step as pipeline_step
from labkit.planner import card_picture, need, strategies
from labkit.planner.plan import cluster, layout, plan, search, shape, stacks
from labkit.planner.trust import rows as published
from labkit.profiling import advice
from labkit.profiling.bottleneck import Bottleneck
from labkit.profiling.recording import record_run
from labkit.profiling.step import Step as SlowStep
from labkit.scaling import aims, series
from labkit.scaling import recorded as scaling_recorded
from labkit.scaling.input import feeding
from labkit.serving import generation, load, queue, served
from labkit.sharding import moments, partition, states
from labkit.sharding import step as sharding_step
from labkit.tensor_parallel import layer as tensor_layer
from labkit.your_own import recorded_steps
from labkit.your_own import step as your_own_step
from labkit.zero import offload_times, stages

SLOW = Bottleneck(kind="straggler")
TOPO = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-3\nGPU1\tNV12\t X \t0-3\n"
WRITTEN = ("no-such-file", "中文", "file.png")


def tasks() -> list[timeline.Timeline]:
    """Valid timelines: simulated, measured, empty, of messages only, with labels that are no
    actions."""
    four = schedules.zbv(2, 4)
    row = (0, "compute", "compute", "?", 0.0, 0.0, 0)
    return [
        simulation.simulate(schedules.gpipe(2, 3), simulation.Cost(message_us=50.0, gap_us=3.0)),
        simulation.simulate(four),
        timeline.from_rows([], num_ranks=2, origin="simulated"),
        timeline.from_rows([row], num_ranks=1, origin="recorded"),
        timeline.from_rows(
            [(1, "compute", "F", "?", -5.0, 7.0, 0)], num_ranks=3, origin="measured"
        ),
        timeline.from_rows(
            [(0, "comm", "all_reduce", "中文", 1.0, 1e12, 2**62)], num_ranks=1, origin="measured"
        ),
        network.simulate(
            algorithms.plan("all_reduce", "ring", 4), network.uniform(4, LINKS[0]), 1e6
        ),
        buckets.simulate(LAYERS, ((2, 1), (0,)), lambda num_bytes: num_bytes / 1e3, num_ranks=2),
    ]


LINKS = [
    network.Link(alpha_us=5.0, bandwidth_gb_per_s=10.0),
    network.Link(alpha_us=0.0, bandwidth_gb_per_s=float("inf"), wire="w"),
]
LAYERS = [
    buckets.Layer(name=f"layer {size}", num_bytes=size, forward_us=float(size))
    for size in (1, 40, 4000)
]
UNITS = moments.transformer(num_layers=2, dim=8, num_heads=2, batch=1, seq_len=4)
CPU = topology.Cpu(number=0, core=0, cache=0, node=0, package=0)
SERIES = [
    curves.Series("a", (1.0, 2.0), (3.0, 4.0)),
    curves.Series({"en": "b", "zh": "乙"}, (1,), (2,), True),
    curves.Series("none", (), ()),
    curves.Series("wild", (0.0, 1e300), (float("nan"), -1e300)),
    curves.Series("odd", (1.0,), ()),
    curves.Series("large", (1e-300, 1e300), (-1e300, 1e300)),
    curves.Series("joined", (1, 2), (3, 4), True, True),
]
MARKS = [
    axes.Mark("most", 3.0),
    axes.Mark({"en": "here", "zh": "此处"}, 1, True),
    axes.Mark("none", 0.0),
    axes.Mark("wild", float("nan")),
]


SHAPES = [
    shape.from_name("GPT-2"),
    shape.Shape(layers=2, hidden=8, heads=2, vocab=16, glu=True, experts=4, active_experts=2),
]
A100 = cluster.gpu("A100-80")
CLUSTERS = [cluster.Cluster(gpu=A100, num_gpus=each) for each in (1, 16)]
MESHES = [mesh.Mesh(), mesh.Mesh(pp=2, dp_shard=4, ep=2, tp=2, node_size=3)]
PLANS = [plan.Plan(), plan.Plan(model=SHAPES[1], gpus=16, tp=2, pp=2, batch=64, vpp=1)]
ROW = {"gpu": "A100-80", "n_gpus": 8, "layers": 2, "hidden": 64, "seq": 32, "gbs": 8, "iter_s": 1}


def _own() -> tuple:
    """A module of torch's own, and a batch for it."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2), torch.randn(2, 4, 16)


def experiments() -> dict[type, list]:
    """Valid ones of every experiment, and what comes of them."""
    toss = pipeline_step.Step(ranks=2, microbatches=2, forward_ms=1.0)
    every = [
        toss,
        pipeline_step.Step(schedule=schedules.gpipe(2, 3)),
        pipeline_step.Step(schedule="zbv", forward_ms=None),
        data_parallel_step.Step(layers=2, ranks=2),
        data_parallel_step.Step(layers=tuple(LAYERS), slow={1: 2.0}, link=None),
        call.Call(ranks=2),
        call.Call(collective="reduce", algorithm="tree", network=LINKS[0]),
        sharding_step.Step(layers=2, dim=8),
        sharding_step.Step(engine="fsdp1", layers=2, dim=8),
        stages.Stages(),
        stages.Offload(model="7B"),
        update.Update(),
        attention.Attention(),
        experts_layer.Layer(),
        experts_layer.Layer(experts=4, tokens=4, capacity=1.0),
        attention.Attention(way="ulysses", causal=False),
        tensor_layer.Layer(),
        tensor_layer.Layer(
            ranks=3, hidden=10, heads=5, vocab=7, sequence=6, sequence_parallel=True
        ),
        unequal_step.Step(),
        unequal_step.Step(speeds=(1, 2.5, 9), batch=7, split="fastest"),
        edge.Cut(),
        edge.Cut(after=6, requests=3),
        edge.Cut(after=1, form="int4", requests=3, stream=True),
        mesh_step.Step(),
        mesh_step.Step(pp=1, dp_replicate=2, dp_shard=2, zero=1, forward_ms=1.0, node_size=2),
        generation.Generation(),
        generation.Generation(way="pipeline", ranks=3),
        load.Load(),
        load.Load(policy="static", requests=3, patience_ms=5.0),
        need.Need(),
        need.Need(device=1e9, seq_len=128),
        *PLANS,
        series.Scaling(),
        series.Scaling(kind="weak", ranks=(1, 3), paced=False),
        feeding.Feeding(),
        feeding.Feeding(workers=2, batches=1),
        *(strategies.Strategy(strategy=way, ranks=8, batch=64) for way in ("data", "hybrid")),
        your_own_step.Step(make=_own),
    ]
    found: dict[type, list] = {pipeline_step.Training: [pipeline_step.Training()]}
    for each in every:
        found.setdefault(type(each), []).append(each)
    quick = load.Load(requests=3)
    found[served.Served] = [quick.predict(), quick.served([], "measured")]
    found[queue.Visit] = [*quick.predict().visits]
    found[queue.Request] = [*quick.coming()]
    found[queue.Cost] = [quick.cost()]
    found[routing.Routing] = list(experts_layer.Layer(tokens=4).routings())
    before = toss.predict()
    found[experiment.Difference] = [toss.difference(before, before)]
    found[experiment.Reading] = [toss.reading]
    found[sweeps.Sweep] = [sweeps.sweep(toss, microbatches=(2, 4))]
    found[experiment.Experiment] = every
    found[series.Scaled] = [series.Scaling().predict(), scaling_recorded.scaled("weak")]
    found[series.Spent] = [found[series.Scaled][0].spent[1]]
    found[recorded_steps.Clocked] = [*recorded_steps.steps()]
    found[aims.Target] = aims.targets(found[series.Scaled][0])
    return found


def planned() -> dict[type, list]:
    """Valid plans, one that does not fit among them, and what is made of them."""
    made = [
        plan.Plan(batch=64),
        plan.Plan(zero=1, batch=64),
        plan.Plan(pp=4, vpp=2, batch=64),
        plan.Plan(model="Mixtral 8x7B", gpu="T4", gpus=64, tp=4, zero=3, ep=2, batch=64),
    ]
    searches = [search.search(made[0]), search.search(made[0].but(batch=1, gpu="T4"))]
    return {
        shape.Shape: SHAPES,
        cluster.Gpu: [A100],
        cluster.Cluster: CLUSTERS,
        cluster.Group: [cluster.Group(size=1), cluster.Group(size=16, stride=2)],
        layout.Layout: [layout.Layout(), layout.Layout(tp=2, pp=2, dp=4, gbs=64)],
        stacks.Stack: [*stacks.STACKS.values()],
        published.Row: [published.row({**ROW, "iter_s": each}, "r") for each in (1, 2, 3)],
        plan.Plan: [*made, *PLANS],
        card_picture.Card: [card_picture.card(*made[:2], price_per_gpu_hour=2.0)],
        search.Search: searches,
        search.Candidate: [*searches[0].frontier(), *searches[1].too_large[:2]],
    }


@functools.cache
def nouns() -> dict[type, list]:
    """Valid ones of every noun that an argument may be."""
    timelines = tasks()
    calls = (
        ("all_reduce", "ring", 4),
        ("reduce", "tree", 3),
        ("all_to_all", "pairwise", 3),
        ("send_recv", "direct", 1),
    )
    made = [algorithms.plan(*call) for call in calls]
    empty = shards.from_rows([], num_ranks=1, origin="measured")
    step = moments.predict("ddp", UNITS, 2)
    pictures = [scene.timeline(each, language="en") for each in timelines]
    pictures += [scene.timeline(each, language="zh") for each in timelines]
    drawings = [
        curves.curves(SERIES[:2], title="t", badge="measured"),
        curves.bars([("a", 3.0)], title="b", badge=""),
    ]
    actions = schedules.one_f_one_b(2, 3).orders[0]
    found = [advice.advise(each) for each in (SLOW.predict(), timelines[2])]
    return {
        timeline.Timeline: timelines,
        plans.Plan: made,
        plans.Message: [made[0].steps[0][0]],
        schedules.Schedule: [
            schedules.gpipe(2, 3),
            schedules.interleaved_zero_bubble(2, 4),
            schedules.naive(1),
            schedules.parse("rank 0: 0B0 0F0"),
            schedules.parse("rank 0: 1F0\nrank 1: 0F0 0B0"),
        ],
        schedules.Action: [*actions],
        simulation.Cost: [simulation.Cost(), simulation.Cost(forward_us=0.0, message_us=9.0)],
        network.Link: LINKS,
        buckets.Layer: LAYERS,
        large_rules.Critical: [large_rules.Critical(85.0, 22.0), large_rules.Critical(1.0, 0.0)],
        large_recorded.Ended: [*large_recorded.optimizers()[:2]],
        large_rules.Noise: [large_rules.Noise(18.0, 1.4), large_rules.Noise(0.0, 0.0)],
        large_run.Training: [large_run.Training(most_steps=5)],
        unequal_training.Training: [unequal_training.Training(seconds=0.1)],
        edge.Times: [edge.Cut(after=each).times() for each in (0, 2, 6)],
        edge.Stage: [*edge.NETWORK[:2]],
        Bottleneck: [SLOW, SLOW.but(kind="bubble", cured=True)],
        SlowStep: [SLOW.step],
        Perception: [Perception(), Perception(placement="apart", ranks=8, steps=2)],
        llama.Case: [llama.as_written(), *small.cases()[:3]],
        advice.Advice: found,
        record_run.Record: [
            record_run.Record(
                advice=each,
                timeline=each.timeline,
                steps=2,
                step_us=9.0,
                flops_per_s=None,
                remarks=(),
                folder=Path(),
            )
            for each in found
        ],
        advice.Change: [*found[0].changes],
        advice.Part: [*found[0].path],
        moments.Unit: UNITS,
        moments.Gradient: [*UNITS[1].gradients],
        network.Network: [
            network.uniform(4, LINKS[0]),
            network.uniform(1, LINKS[1]),
            network.Network(name="none", links=((None, None), (None, None))),
            network.islands(4, 2, inside=LINKS[0], between=LINKS[1]),
        ],
        network.Fit: [network.fit("all_reduce", 2, np.array([1, 9]), np.array([1, 3]))],
        shards.Shards: [
            empty,
            partition.predict("zero2", moments.shapes(UNITS), 2),
            partition.stage_shards(10, 3, 3),
        ],
        mesh.Mesh: MESHES,
        mesh.Groups: [each.groups(axis) for each, axis in zip(MESHES, ("tp", "ep"), strict=True)],
        footprint.Footprint: [
            step,
            moments.predict("fsdp", UNITS, 4),
            footprint.from_moments([("F0", {"temporary": 0.0})], "measured"),
        ],
        states.Recipe: [*states.RECIPES.values()],
        offload_times.Phase: stages.Offload(model="7B").predict().phases,
        states.Transfer: states.offload_moves(10, 2, 3, "all", 2),
        topology.Cpu: [CPU],
        topology.Devices: [topology.Devices(), topology.parse_topo(TOPO)],
        topology.Topology: [
            topology.Topology(cpus=(CPU,), num_usable=1, node_bytes={0: 10**9}, devices=devices)
            for devices in (topology.Devices(), topology.parse_topo(TOPO))
        ],
        scene.Scene: pictures,
        scene.Row: [*pictures[0].rows],
        sketch.Sketch: drawings,
        scene.Heading: [scene.Heading(text="t", detail="", bottom_px=9.0)],
        sketch.Box: [sketch.Box(0, 60, 9, 9, "#4f9fe3", texts=("a",))],
        sketch.Words: [sketch.Words(1, 2, "中文")],
        sketch.Line: [sketch.Line(((0, 0), (9, 9)), arrow=True), sketch.Line((), mark="o")],
        curves.Series: SERIES,
        axes.Mark: MARKS,
        style.Kind: [style.style("F")],
        **experiments(),
        **planned(),
        calibrate_run.Point: [
            calibrate_run.Point(
                primitive="all_reduce", num_ranks=2, num_bytes=size, time_us=9.0 + size
            )
            for size in (4, 1000)
        ],
        doctor.Row: [doctor.Row(name="gloo", value="", ok=False, fix="make env")],
        doctor.Report: [doctor.Report(rows=())],
        # none of them starts a job: nobody is named, or no drawn number of ranks fits
        Hosts: [Hosts()],
        Slurm: [Slurm(nodes=99_991)],
        tables.Table: [
            tables.table([{"rank": 0, "held_bytes": 9.0}], title="t"),
            tables.table([], heads=["a"], language="zh"),
        ],
        rung.Pretend: [rung.Pretend(memory_mib=64, link_gb_per_s=2.0)],
        rung.Rung: [rung.Rung(name="cpu", backend="gloo")],
        run.Run: [run.Run(results=(1,), logs=("",), seconds=1.0, backend="gloo", notes=("gloo",))],
        gate.Ticket: [gate.Ticket(name="a", arrived_ns=1, learner="0 ann", ranks=2, running=True)],
        outcome.Finding: [outcome.Finding(fault="sigkill", ranks=(1,), text="rank 1 was killed")],
        outcome.Outcome: [
            outcome.Outcome(rank=rank, how=how)
            for rank, how in enumerate(("returned", "died", "stuck"))
        ],
        Path: [Path(name) for name in (*WRITTEN, ".")],
    }
