"""Which rank holds which slice, as each engine cuts: DDP, DeepSpeed's ZeRO 0 to 3 with and without
offload, FSDP.

    partition.predict("zero2", shapes, num_ranks=4)      # Shards, to the last byte, padding named

The moment is between two microbatches of a step that is not the first: gradients are there, and the
optimizer's states. Rules as in torch 2.13 and DeepSpeed 0.19.8; ``engines.shards`` reads the same
out of live ranks.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from labkit.sharding.states import by_category, is_sharded, recipe, state_bytes
from labkit.shards import PADDING, UNUSED, Shards, from_rows
from labkit.units import MOST_RANKS, check_real, check_whole, check_word

STAGES = {
    "ddp": 0,
    "zero0": 0,
    "zero1": 1,
    "zero2": 2,
    "zero3": 3,
    "fsdp": 3,
    "fsdp_grad_op": 3,
    "fsdp_hybrid": 3,
    "fsdp1": 3,
}
"""The engines, and what of the states each has in parts between two steps. "fsdp" is
``fully_shard``; "fsdp_grad_op" the same with reshard_after_forward=False: it differs while it
computes. "fsdp_hybrid" shards in groups of ``shard_size`` ranks and replicates between them;
"fsdp1" is ``FullyShardedDataParallel``."""
OFFLOADS = ("none", "optimizer", "all")
OPTIMIZER = ("master", "exp_avg", "exp_avg_sq")
Shape = tuple[int, ...]
Slice = tuple[str, int, int]
"""Tensor, start, stop."""
Row = tuple[int, str, str, int, int, str, str]
"""Rank, kind, tensor, start, stop, type, device: a row of Shards."""


def predict(
    engine: str,
    shapes: Mapping[str, Shape],
    num_ranks: int,
    *,
    recipe_name: str | None = None,
    units: Sequence[Sequence[str]] | None = None,
    shard_size: int | None = None,
    offload: str = "none",
    bucket_size: int = 0,
) -> Shards:
    """What every rank holds between two microbatches.

    ``shapes``: parameter -> shape, in the model's order. ``recipe_name``: one of
    ``states.RECIPES``; by default "mixed" for DeepSpeed and "fp32" for the others. ``units`` (FSDP
    1): the parameters of each wrapped module, all in one by default. ``shard_size`` (hybrid): ranks
    per sharding group, by default half of them. ``offload`` (ZeRO 1 to 3): "optimizer", or "all"
    for the parameters too (ZeRO 3). ``bucket_size``: DeepSpeed's reduce_bucket_size in elements.
    Raises ValueError for what no engine does.
    """
    _check(engine, num_ranks, offload, shard_size)
    check_whole(1, 100_000, **{"ranks times parameter tensors": num_ranks * len(shapes)})
    named = chain.from_iterable(unit or ["?"] for unit in units or ())
    if units and sorted(named) != sorted(shapes):
        raise ValueError(f"units name each parameter once; got {units} for {list(shapes)}")
    dtypes = state_dtypes(engine, recipe_name)
    if engine.startswith("zero") and "gradient" not in dtypes:
        raise ValueError(
            f"DeepSpeed keeps a gradient; the recipe {recipe_name!r} has {', '.join(dtypes)}"
        )
    units = units or [list(shapes)]
    if engine in ("zero1", "zero2"):
        rows = _zero12(engine, shapes, num_ranks, dtypes, offload != "none", bucket_size)
    elif engine == "zero3":
        rows = _zero3(shapes, num_ranks, dtypes, offload, bucket_size)
    elif engine == "fsdp1":
        rows = _fsdp1(shapes, num_ranks, dtypes, units)
    elif engine.startswith("fsdp"):
        rows = _fsdp2(shapes, num_ranks, dtypes, group_size(engine, num_ranks, shard_size))
    else:
        rows = _whole(shapes, num_ranks, dtypes)
    counters = _step_counters(engine, shapes, num_ranks, units)
    return from_rows([*rows, *counters], num_ranks=num_ranks, origin="predicted")


def state_dtypes(engine: str, recipe_name: str | None = None) -> dict[str, str]:
    """Kind of state -> type, by a recipe of ``states.RECIPES``; by default the one that the engine
    runs here."""
    check_word(engine, STAGES, "an engine")
    usual = "mixed" if engine.startswith("zero") else "fp32"
    return dict(recipe(recipe_name or usual).dtypes)


def group_size(engine: str, num_ranks: int, shard_size: int | None = None) -> int:
    """Among how many ranks an engine deals out the states: all, or (hybrid) ``shard_size``, by
    default half."""
    if engine == "fsdp_hybrid":
        return shard_size or num_ranks // 2
    return num_ranks


def rows_elements(shape: Shape, size: int) -> int:
    """Elements of the longest of ``size`` shards that ``fully_shard`` cuts along the first
    dimension."""
    check_whole(size=size)
    num_rows = shape[0] if shape else 1
    return -(-num_rows // size) * math.prod(shape[1:])


def _check(engine: str, num_ranks: int, offload: str, shard_size: int | None) -> None:
    check_word(engine, STAGES, "an engine")
    check_whole(1, MOST_RANKS, num_ranks=num_ranks)
    check_word(offload, OFFLOADS, "offload")
    able = {"zero1": OFFLOADS[:2], "zero2": OFFLOADS[:2], "zero3": OFFLOADS}
    if offload not in able.get(engine, ("none",)):
        raise ValueError(
            f"ZeRO 1 to 3 offload optimizer states, and ZeRO 3 parameters; got {offload!r} for "
            f"{engine}"
        )
    size = num_ranks / 2 if shard_size is None else shard_size
    if engine == "fsdp_hybrid" and (size < 1 or size % 1 or num_ranks % size):
        raise ValueError(
            f"sharding groups are of one size, by default two groups; {num_ranks} ranks are not "
            f"groups of {size}"
        )


def _step_counters(
    engine: str, shapes: Mapping[str, Shape], num_ranks: int, units: Sequence[Sequence[str]]
) -> Iterator[Row]:
    """torch's AdamW counts steps in a float32 of its own for each tensor that it is given."""
    if engine.startswith("zero"):
        return
    names = list(shapes)
    if engine == "fsdp1":
        names = [f"{_prefix(unit)}(flat)" for unit in units]
    for rank in range(num_ranks):
        for name in names:
            yield rank, "step", name, 0, 1, "float32", "device"


def _prefix(unit: Sequence[str]) -> str:
    """The module's path and a dot, from the names of its parameters."""
    paths = [name.split(".")[:-1] for name in unit]
    prefix = ""
    for level in zip(*paths, strict=False):
        if len(set(level)) > 1:
            break
        prefix += f"{level[0]}."
    return prefix


def _whole(shapes: Mapping[str, Shape], num_ranks: int, dtypes: Mapping[str, str]) -> Iterator[Row]:
    """DDP and stage 0: everything on every rank."""
    for rank in range(num_ranks):
        for name, shape in shapes.items():
            for kind, dtype in dtypes.items():
                yield rank, kind, name, 0, math.prod(shape), dtype, "device"


def _zero12(
    engine: str,
    shapes: Mapping[str, Shape],
    num_ranks: int,
    dtypes: Mapping[str, str],
    offload: bool,
    bucket_size: int,
) -> Iterator[Row]:
    """ZeRO 1 and 2: all parameters behind each other, padded to a multiple of two elements per
    rank, cut in equal parts."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total = sum(sizes.values())
    padded = -(-total // (2 * num_ranks)) * 2 * num_ranks
    part = padded // num_ranks
    place = "host" if offload else "device"
    states = {kind: dtypes[kind] for kind in OPTIMIZER if kind in dtypes}
    if offload:
        states["main_grad"] = "float32"  # the gradients of the step
    for rank in range(num_ranks):
        for name, size in sizes.items():
            yield rank, "parameter", name, 0, size, dtypes["parameter"], "device"
        yield rank, "parameter", PADDING, 0, padded - total, dtypes["parameter"], "device"
        mine = list(cut(sizes, rank * part, part))
        for kind, dtype in states.items():
            for name, start, stop in mine:
                yield rank, kind, name, start, stop, dtype, place
        if offload:
            yield from _offload_buffers(rank, part, max(sizes.values()), dtypes["parameter"])
        if engine == "zero1":
            for name, size in sizes.items():
                yield rank, "gradient", name, 0, size, dtypes["gradient"], "device"
            yield rank, "buffer", "ipg_bucket", 0, bucket_size, dtypes["gradient"], "device"
        else:
            yield from _own_gradients(rank, mine, sizes, dtypes["gradient"], place)


def _offload_buffers(rank: int, part: int, largest: int, dtype: str) -> Iterator[Row]:
    """What ZeRO 1 and 2 keep when they offload: room for this rank's part of the parameters, and
    for the largest gradient on both sides."""
    parameters = "param_buffer_of_bit16_for_cpu_offload_groups"
    yield rank, "buffer", parameters, 0, part, dtype, "host"
    yield rank, "buffer", "temp_grad_buffer_for_cpu_offload", 0, largest, dtype, "host"
    yield rank, "buffer", "temp_grad_buffer_for_gpu_offload", 0, largest, dtype, "device"


def _own_gradients(
    rank: int, mine: Sequence[Slice], sizes: Mapping[str, int], dtype: str, place: str
) -> Iterator[Row]:
    """ZeRO 2: a gradient that a rank needs a slice of is kept whole."""
    real = [each for each in mine if each[0] != PADDING]
    for name, start, stop in real:
        yield rank, "gradient", name, start, stop, dtype, place
    for name, start, stop in real:
        yield rank, "gradient", UNUSED, 0, sizes[name] - (stop - start), dtype, place


def cut(sizes: Mapping[str, int], begin: int, size: int) -> Iterator[Slice]:
    """What of tensors laid behind each other falls into [begin, begin + size), in elements; the
    rest is padding."""
    check_whole(0, begin=begin, size=size)
    end = begin + size
    offset = 0
    for name, numel in dict(sizes).items():
        start = max(0, begin - offset)
        stop = min(numel, end - offset)
        if start < stop:
            yield name, start, stop
        offset += numel
    if offset < end:
        yield PADDING, 0, min(size, end - offset)


def _zero3(
    shapes: Mapping[str, Shape],
    num_ranks: int,
    dtypes: Mapping[str, str],
    offload: str,
    bucket_size: int,
) -> Iterator[Row]:
    """ZeRO 3: each parameter in equal parts, the last ones padded; all states alike."""
    kinds = []
    for kind, dtype in dtypes.items():
        on_host = offload == "all" if kind == "parameter" else offload != "none"
        kinds.append((kind, dtype, "host" if on_host else "device"))
    if offload != "none":
        kinds.append(("main_grad", "float32", "host"))
    for rank in range(num_ranks):
        for name, shape in shapes.items():
            numel = math.prod(shape)
            part = -(-numel // num_ranks)
            start = min(rank * part, numel)
            stop = min(start + part, numel)
            for kind, dtype, place in kinds:
                yield rank, kind, name, start, stop, dtype, place
                yield rank, kind, PADDING, 0, part - (stop - start), dtype, place
        yield rank, "buffer", "ipg_bucket", 0, bucket_size, dtypes["gradient"], "device"


def _fsdp2(
    shapes: Mapping[str, Shape], num_ranks: int, dtypes: Mapping[str, str], shard_size: int
) -> Iterator[Row]:
    """FSDP 2: each parameter cut along its first dimension, as ``torch.chunk`` cuts. The
    parameter's own shard is as long as the longest, so that all gather alike; what a short one
    lacks is padding."""
    for rank in range(num_ranks):
        place = rank % shard_size
        for name, shape in shapes.items():
            longest = rows_elements(shape, shard_size)
            start = min(math.prod(shape), longest * place)
            stop = min(math.prod(shape), longest * (place + 1))
            for kind, dtype in dtypes.items():
                yield rank, kind, name, start, stop, dtype, "device"
                if kind in ("parameter", "gradient"):
                    yield rank, kind, PADDING, 0, longest - (stop - start), dtype, "device"


def _fsdp1(
    shapes: Mapping[str, Shape],
    num_ranks: int,
    dtypes: Mapping[str, str],
    units: Sequence[Sequence[str]],
) -> Iterator[Row]:
    """FSDP 1: the parameters of a wrapped module behind each other, cut in equal parts, the last
    one padded."""
    for unit in units:
        sizes = {name: math.prod(shapes[name]) for name in unit}
        part = -(-sum(sizes.values()) // num_ranks)
        for rank in range(num_ranks):
            for kind, dtype in dtypes.items():
                for name, start, stop in cut(sizes, rank * part, part):
                    yield rank, kind, name, start, stop, dtype, "device"


def offload_places(
    num_params: float, num_ranks: int, stage: int, offload: str, num_microbatches: int = 1
) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes of a rank's states by part of the bill: on the device, and in the host's memory, by the
    formula. ``offload``: "optimizer" or "all".

    From stage 2 on gradients leave the device as they arise, a bucket at a time (DeepSpeed's code,
    0.19.8, and a pretend device's allocator, ``tests/zero/test_offload_memory.py``).
    """
    check_word(offload, OFFLOADS[1:], "offload")
    check_whole(1, num_microbatches=num_microbatches)
    device = by_category(state_bytes(num_params, num_ranks, stage))
    # the host updates with gradients in fp32
    host = {"gradients": 4 * num_params / num_ranks, "optimizer": device.pop("optimizer")}
    if stage > 1:
        in_16_bit = device.pop("gradients")
        # those of further microbatches are added to them; stage 3 keeps them for a single one, too
        host["gradients"] += in_16_bit if stage == 3 or num_microbatches > 1 else 0
    if offload == "all":
        host = {"parameters": device.pop("parameters"), **host}
    return device, host


def stage_shards(num_params: int, num_ranks: int, stage: int, recipe_name: str = "mixed") -> Shards:
    """The textbook's picture: one tensor "model" of so many parameters, cut as a ZeRO stage cuts,
    nothing padded."""
    check_real(num_params=num_params)
    check_whole(1, 10_000, num_ranks=num_ranks)
    borders = [round(rank * num_params / num_ranks) for rank in range(num_ranks + 1)]
    rows = []
    for rank in range(num_ranks):
        for kind, dtype in recipe(recipe_name).dtypes.items():
            start, stop = 0, num_params
            if is_sharded(kind, stage):
                start, stop = borders[rank], borders[rank + 1]
            rows.append((rank, kind, "model", start, stop, dtype, "device"))
    return from_rows(rows, num_ranks=num_ranks, origin="predicted")
