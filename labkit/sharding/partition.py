"""Which rank holds which slice, as each engine cuts: DDP, DeepSpeed's ZeRO 0 to 3 with and without
offload, FSDP.

    partition.predict("zero2", shapes, num_ranks=4)      # Shards, to the last byte, padding named

The moment is between two microbatches of a step that is not the first: gradients are there, and the
optimizer's states. Rules as in torch 2.13 and DeepSpeed 0.19.8; ``engines.shards`` reads the same
out of live ranks.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from labkit.sharding.states import is_sharded, recipe
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
Slice = tuple[str, int, int]  # tensor, start, stop


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
    ``memory.RECIPES``; by default "mixed" for DeepSpeed and "fp32" for the others. ``units`` (FSDP
    1): the parameters of each wrapped module, all in one by default. ``shard_size`` (hybrid): ranks
    per sharding group, by default half of them. ``offload`` (ZeRO 1 to 3): "optimizer", or "all"
    for the parameters too (ZeRO 3). ``bucket_size``: DeepSpeed's reduce_bucket_size in elements.
    Raises ValueError for what no engine does.
    """
    _check(engine, num_ranks, offload, shard_size)
    check_whole(1, 100_000, **{"ranks times parameter tensors": num_ranks * len(shapes)})
    if units and sorted(name for unit in units for name in unit or "?") != sorted(shapes):
        raise ValueError(f"units name each parameter once; got {units} for {list(shapes)}")
    dtypes = state_dtypes(engine, recipe_name)
    if engine.startswith("zero") and "gradient" not in dtypes:
        raise ValueError(
            f"DeepSpeed keeps a gradient; the recipe {recipe_name!r} has {', '.join(dtypes)}"
        )
    if engine in ("zero1", "zero2"):
        rows = _flat(shapes, num_ranks, STAGES[engine], dtypes, offload != "none", bucket_size)
    elif engine == "zero3":
        rows = _each(shapes, num_ranks, dtypes, offload, bucket_size)
    elif engine == "fsdp1":
        rows = _units(shapes, num_ranks, dtypes, units or [list(shapes)])
    elif engine.startswith("fsdp"):
        rows = _rows(shapes, num_ranks, dtypes, group_size(engine, num_ranks, shard_size))
    else:
        rows = (
            (rank, kind, name, 0, math.prod(shape), dtype, "cpu")
            for rank in range(num_ranks)
            for name, shape in shapes.items()
            for kind, dtype in dtypes.items()
        )
    counted = () if engine.startswith("zero") else _stepped(engine, shapes, units)
    steps = [
        (rank, "step", name, 0, 1, "float32", "cpu")
        for rank in range(num_ranks)
        for name in counted
    ]
    return from_rows([*rows, *steps], num_ranks=num_ranks, origin="predicted")


def state_dtypes(engine: str, recipe_name: str | None = None) -> dict[str, str]:
    """Kind of state -> type, by a recipe of ``memory.RECIPES``; by default the one that the engine
    runs here."""
    check_word(engine, STAGES, "an engine")
    return dict(recipe(recipe_name or ("mixed" if engine.startswith("zero") else "fp32")).dtypes)


def group_size(engine: str, num_ranks: int, shard_size: int | None = None) -> int:
    """Among how many ranks an engine deals out the states: all, or (hybrid) ``shard_size``, by
    default half."""
    return (shard_size or num_ranks // 2) if engine == "fsdp_hybrid" else num_ranks


def rows_elements(shape: Shape, size: int) -> int:
    """Elements of the longest of ``size`` shards that ``fully_shard`` cuts along the first
    dimension."""
    check_whole(size=size)
    return -(-(shape or (1,))[0] // size) * math.prod(shape[1:])


def _check(engine: str, num_ranks: int, offload: str, shard_size: int | None) -> None:
    check_word(engine, STAGES, "an engine")
    check_whole(1, MOST_RANKS, num_ranks=num_ranks)
    check_word(offload, OFFLOADS, "offload")
    able = {"zero1": ("optimizer",), "zero2": ("optimizer",), "zero3": ("optimizer", "all")}.get(
        engine, ()
    )
    if offload != "none" and offload not in able:
        raise ValueError(
            f"ZeRO 1 to 3 offload optimizer states, and ZeRO 3 parameters; got {offload!r} for "
            f"{engine}"
        )
    size = num_ranks / 2 if shard_size is None else shard_size
    if engine == "fsdp_hybrid" and (size < 1 or size % 1 or num_ranks % size):
        raise ValueError(
            f"sharding groups are of one size, by default two groups; {num_ranks} ranks are not "
            "groups of "
            f"{size}"
        )


def _stepped(
    engine: str, shapes: Mapping[str, Shape], units: Sequence[Sequence[str]] | None
) -> Iterable[str]:
    """torch's AdamW counts steps in a float32 of its own for each tensor that it is given."""
    if engine != "fsdp1":
        return shapes
    return [f"{_prefix(unit)}(flat)" for unit in units or [list(shapes)]]


def _prefix(unit: Sequence[str]) -> str:
    """The module's path and a dot, from the names of its parameters."""
    first = unit[0].split(".")
    same = 0
    while (
        all(name.split(".")[: same + 1] == first[: same + 1] for name in unit)
        and same < len(first) - 1
    ):
        same += 1
    return "".join(f"{part}." for part in first[:same])


def _flat(
    shapes: Mapping[str, Shape],
    num_ranks: int,
    stage: int,
    dtypes: Mapping[str, str],
    offload: bool,
    bucket_size: int,
) -> Iterator[tuple]:
    """ZeRO 1 and 2: all parameters behind each other, padded to a multiple of two elements per
    rank, cut in equal parts. A gradient that a rank needs a slice of is kept whole."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total = sum(sizes.values())
    padded = -(-total // (2 * num_ranks)) * 2 * num_ranks
    part, place = padded // num_ranks, "host" if offload else "cpu"
    kept_as = "float32" if offload else None  # the fp32 gradients of the step
    for rank in range(num_ranks):
        mine = list(cut(sizes, rank * part, part))
        yield from (
            (rank, "parameter", name, 0, size, dtypes["parameter"], "cpu")
            for name, size in sizes.items()
        )
        yield rank, "parameter", PADDING, 0, padded - total, dtypes["parameter"], "cpu"
        kinds = [(kind, dtypes[kind]) for kind in OPTIMIZER if kind in dtypes] + [
            ("main_grad", kept_as)
        ] * offload
        yield from ((rank, kind, *each, dtype, place) for kind, dtype in kinds for each in mine)
        for name, size, where in (
            ("param_buffer_of_bit16_for_cpu_offload_groups", part, "host"),
            ("temp_grad_buffer_for_cpu_offload", max(sizes.values()), "host"),
            ("temp_grad_buffer_for_gpu_offload", max(sizes.values()), "cpu"),
        ):
            yield rank, "buffer", name, 0, size * offload, dtypes["parameter"], where
        real = [each for each in mine if each[0] != PADDING]
        if stage == 1:
            yield from (
                (rank, "gradient", name, 0, size, dtypes["gradient"], "cpu")
                for name, size in sizes.items()
            )
            yield rank, "buffer", "ipg_bucket", 0, bucket_size, dtypes["gradient"], "cpu"
            continue
        yield from ((rank, "gradient", *each, dtypes["gradient"], place) for each in real)
        yield from (
            (rank, "gradient", UNUSED, 0, sizes[name] - (stop - start), dtypes["gradient"], place)
            for name, start, stop in real
        )


def cut(sizes: Mapping[str, int], begin: int, size: int) -> Iterator[Slice]:
    """What of tensors laid behind each other falls into [begin, begin + size), in elements; the
    rest is padding."""
    check_whole(0, begin=begin, size=size)
    offset = 0
    for name, numel in dict(sizes).items():
        start, stop = max(0, begin - offset), min(numel, begin + size - offset)
        if start < stop:
            yield name, start, stop
        offset += numel
    if offset < begin + size:
        yield PADDING, 0, min(size, begin + size - offset)


def _each(
    shapes: Mapping[str, Shape],
    num_ranks: int,
    dtypes: Mapping[str, str],
    offload: str,
    bucket_size: int,
) -> Iterator[tuple]:
    """ZeRO 3: each parameter in equal parts, the last ones padded; all states alike."""
    host = offload != "none"
    kinds = [
        (kind, dtype, offload == "all" if kind == "parameter" else host)
        for kind, dtype in dtypes.items()
    ]
    kinds += [("main_grad", "float32", True)] * host
    for rank in range(num_ranks):
        for name, shape in shapes.items():
            numel = math.prod(shape)
            part = -(-numel // num_ranks)
            start, stop = min(rank * part, numel), min((rank + 1) * part, numel)
            for kind, dtype, offloaded in kinds:
                place = "host" if offloaded else "cpu"
                yield rank, kind, name, start, stop, dtype, place
                yield rank, kind, PADDING, 0, part - (stop - start), dtype, place
        yield rank, "buffer", "ipg_bucket", 0, bucket_size, dtypes["gradient"], "cpu"


def _rows(
    shapes: Mapping[str, Shape], num_ranks: int, dtypes: Mapping[str, str], shard_size: int
) -> Iterator[tuple]:
    """FSDP 2: each parameter cut along its first dimension, as ``torch.chunk`` cuts. The
    parameter's own shard is as long as the longest, so that all gather alike; what a short one
    lacks is padding."""
    for rank in range(num_ranks):
        for name, shape in shapes.items():
            longest, place = rows_elements(shape, shard_size), rank % shard_size
            start, stop = (min(math.prod(shape), longest * each) for each in (place, place + 1))
            for kind, dtype in dtypes.items():
                yield rank, kind, name, start, stop, dtype, "cpu"
                if kind in ("parameter", "gradient"):
                    yield rank, kind, PADDING, 0, longest - (stop - start), dtype, "cpu"


def _units(
    shapes: Mapping[str, Shape],
    num_ranks: int,
    dtypes: Mapping[str, str],
    units: Sequence[Sequence[str]],
) -> Iterator[tuple]:
    """FSDP 1: the parameters of a wrapped module behind each other, cut in equal parts, the last
    one padded."""
    for unit in units:
        sizes = {name: math.prod(shapes[name]) for name in unit}
        part = -(-sum(sizes.values()) // num_ranks)
        for rank in range(num_ranks):
            for kind, dtype in dtypes.items():
                yield from (
                    (rank, kind, *each, dtype, "cpu") for each in cut(sizes, rank * part, part)
                )


def stage_shards(num_params: int, num_ranks: int, stage: int, recipe_name: str = "mixed") -> Shards:
    """The textbook's picture: one tensor "model" of so many parameters, cut as a ZeRO stage cuts,
    nothing padded."""
    check_real(num_params=num_params)
    check_whole(1, 10_000, num_ranks=num_ranks)
    parts = [round(rank * num_params / num_ranks) for rank in range(num_ranks + 1)]
    rows = [
        (
            rank,
            kind,
            "model",
            *((parts[rank], parts[rank + 1]) if is_sharded(kind, stage) else (0, num_params)),
            dtype,
            "cpu",
        )
        for rank in range(num_ranks)
        for kind, dtype in recipe(recipe_name).dtypes.items()
    ]
    return from_rows(rows, num_ranks=num_ranks, origin="predicted")
