"""The noun for bytes: which rank holds which slice of which tensor, in which type, on which device.

Theory predicts Shards, real ranks hold Shards, and one drawing shows both. Shards are columns of
equal length, one row per slice. A slice is a range [start, stop) of the flattened tensor, in
elements.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from labkit.shown import Shown
from labkit.timeline import check_mask, column
from labkit.units import MOST_RANKS, check_whole, check_word, format_bytes

if TYPE_CHECKING:
    from labkit.pictures.sketch import Sketch

ORIGINS = ("predicted", "measured", "recorded")
COLUMNS = ("rank", "kind", "tensor", "start", "stop", "dtype", "device")
ITEMSIZE = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes of one element, by the name of its type."""
PADDING = "(padding)"
"""The tensor's name in rows that hold no element of any tensor: what rounds a partition up."""
UNUSED = "(unused)"
"""The same in rows that an engine keeps without need: the rest of a tensor of which it needs a
slice."""
NO_TENSOR = (PADDING, UNUSED)
CATEGORIES = {
    "parameter": "parameters",
    "gradient": "gradients",
    "main_grad": "gradients",
    "master": "optimizer",
    "exp_avg": "optimizer",
    "exp_avg_sq": "optimizer",
    "momentum": "optimizer",
    "step": "optimizer",
    "buffer": "buffers",
    "cache": "cache",
}
"""The part of the bill that a kind belongs to; any other kind is a part of its own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Shards(Shown):
    """Slices of tensors on ranks. Every column has shape (num_slices,)."""

    JSON_TAG: ClassVar[str] = "shards"
    """how saved runs call it"""

    rank: np.ndarray
    """int64: the rank that holds it"""
    kind: np.ndarray
    """str: what it is: "parameter", "gradient", "master" (the fp32 copy), "exp_avg", "exp_avg_sq",
    "buffer", "cache" (keys and values), ..."""
    tensor: np.ndarray
    """str: the parameter's name; "(padding)" and "(unused)" for bytes that belong to none"""
    start: np.ndarray
    """int64: first element of the flattened tensor"""
    stop: np.ndarray
    """int64: one past the last element"""
    dtype: np.ndarray
    """str: type of the elements, a key of ITEMSIZE"""
    device: np.ndarray
    """str: where it lies: "cpu", "cuda:0", or "device" for the rank's own, whatever it is; "host"
    for what was moved off it"""
    num_ranks: int
    """how many ranks there are, those that hold nothing included"""
    origin: str
    """"predicted", "measured" or "recorded\""""
    notes: tuple[str, ...] = ()
    """what must be said with it: "gloo", a machine's name"""

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise ValueError(
                f"the origin of Shards is one of {', '.join(ORIGINS)}; got {self.origin!r}"
            )
        check_whole(0, MOST_RANKS, num_ranks=self.num_ranks)
        lengths = {name: len(getattr(self, name)) for name in COLUMNS}
        if len(set(lengths.values())) != 1:
            short = min(lengths, key=lengths.__getitem__)
            begins = getattr(self, short)[:3].tolist()
            raise ValueError(
                f"the columns of Shards have one length; got {lengths}, {short} is {begins}"
            )
        if (self.stop < self.start).any() or (self.start < 0).any():
            bad = int(np.argmax((self.stop < self.start) | (self.start < 0)))
            raise ValueError(
                "a slice begins at 0 or later and ends where it begins or later; "
                f"{self.tensor[bad]} on "
                f"rank {self.rank[bad]} is [{self.start[bad]}, {self.stop[bad]})"
            )
        if len(self) and not 0 <= self.rank.min() <= self.rank.max() < self.num_ranks:
            raise ValueError(
                f"ranks are 0 to {self.num_ranks - 1}; got {self.rank.min()} to {self.rank.max()}"
            )
        unknown = sorted(set(self.dtype.tolist()) - set(ITEMSIZE))
        if unknown:
            raise ValueError(
                f"an element's type is one of {', '.join(ITEMSIZE)}; got {unknown[0]!r}"
            )

    def __len__(self) -> int:
        return len(self.rank)

    def __repr__(self) -> str:
        held = format_bytes(int(self.num_bytes.sum()))
        return f"Shards({self.num_ranks} ranks, {len(self)} slices, {held}, {self.badge})"

    def _picture(self, language: str) -> "Sketch":
        from labkit.pictures import bytes_held

        return bytes_held.shards(self, language=language)

    @property
    def badge(self) -> str:
        """Where it comes from, in one line for every picture."""
        return ", ".join((self.origin, *self.notes))

    @property
    def num_bytes(self) -> np.ndarray:
        """Bytes of each slice, int64, shape (num_slices,)."""
        sizes = np.array([ITEMSIZE[dtype] for dtype in self.dtype.tolist()], dtype=np.int64)
        return (self.stop - self.start) * sizes

    def select(self, mask: np.ndarray) -> "Shards":
        """The rows where ``mask`` (bool, shape (num_slices,)) is true."""
        check_mask(mask, len(self))
        return replace(self, **{name: getattr(self, name)[mask] for name in COLUMNS})

    def rows(self) -> list[tuple]:
        """(rank, kind, tensor, start, stop, dtype, device) of each slice."""
        return list(zip(*(getattr(self, name).tolist() for name in COLUMNS), strict=True))

    def to_json(self) -> list:
        """Its rows, number of ranks and notes, as a saved run keeps them."""
        return [self.rows(), self.num_ranks, self.notes]

    @classmethod
    def from_json(cls, content: list) -> "Shards":
        """What ``to_json`` gave; its origin is now "recorded". Raises ValueError or TypeError for
        anything else."""
        rows, num_ranks, notes = content
        return from_rows(rows, num_ranks=num_ranks, origin="recorded", notes=notes)

    def bytes_by(self, column: str = "kind") -> dict[str, np.ndarray]:
        """Bytes per rank, int64 of shape (num_ranks,), for each value of a column; "category" sums
        kinds up."""
        check_word(column, ("category", *COLUMNS), "a column")
        if column == "category":
            keys = [CATEGORIES.get(kind, kind) for kind in self.kind.tolist()]
        else:
            keys = getattr(self, column).tolist()
        found = {key: np.zeros(self.num_ranks, dtype=np.int64) for key in dict.fromkeys(keys)}
        for key, rank, num_bytes in zip(
            keys, self.rank.tolist(), self.num_bytes.tolist(), strict=True
        ):
            found[key][rank] += num_bytes
        return found

    @property
    def rank_bytes(self) -> np.ndarray:
        """Bytes that each rank holds, int64, shape (num_ranks,)."""
        return np.bincount(self.rank, self.num_bytes, self.num_ranks).astype(np.int64)


def from_rows(
    rows: Iterable[Sequence], *, num_ranks: int, origin: str, notes: Iterable[str] = ()
) -> Shards:
    """Shards from (rank, kind, tensor, start, stop, dtype, device) rows. Slices of one tensor that
    touch become one, empty ones are left out, rows stand in the order of ranks, kinds and of the
    tensors as they first came."""
    rows = [*rows]
    odd = [row for row in rows if len(row) != len(COLUMNS)]
    if odd:
        raise ValueError(f"a row of Shards is {', '.join(COLUMNS)}; got {odd[0]!r}")
    merged = _merged(_in_order([tuple(row) for row in rows if row[3] != row[4]]))
    columns = zip(*merged, strict=True) if merged else ((),) * len(COLUMNS)
    types = {"rank": np.int64, "start": np.int64, "stop": np.int64}
    arrays = {
        name: column(name, each, types.get(name, str))
        for name, each in zip(COLUMNS, columns, strict=True)
    }
    return Shards(**arrays, num_ranks=num_ranks, origin=origin, notes=tuple(notes))


def _in_order(rows: Sequence[tuple]) -> list[tuple]:
    """By rank, kind, tensor, type, device and start; kinds in the order of the bill, tensors as
    they first came, those that are none at the end."""
    kinds = {kind: place for place, kind in enumerate(CATEGORIES)}
    seen = dict.fromkeys(row[2] for row in rows)
    tensors = {tensor: place for place, tensor in enumerate(seen)}

    def place(row: tuple) -> tuple:
        rank, kind, tensor, start, _, dtype, device = row
        of_kind = (kinds.get(kind, len(kinds)), kind)
        of_tensor = (tensor in NO_TENSOR, tensors[tensor])
        return rank, of_kind, of_tensor, dtype, device, start

    return sorted(rows, key=place)


def _merged(rows: Iterable[tuple]) -> list[tuple]:
    """Slices of one tensor that touch as one. What belongs to no tensor has no place of its own:
    only its size counts."""
    merged: list[tuple] = []
    for row in rows:
        rank, kind, tensor, start, stop, dtype, device = row
        what = (rank, kind, tensor, dtype, device)
        previous = merged[-1] if merged else None
        same = previous is not None and (*previous[:3], *previous[5:]) == what
        if tensor in NO_TENSOR:
            begin = previous[4] if same else 0
            stop = begin + stop - start
            start = begin
        if same and start == previous[4]:
            start = previous[3]
            merged.pop()
        merged.append((rank, kind, tensor, start, stop, dtype, device))
    return merged


def tiling_faults(shards: Shards, num_elements: Mapping[str, int]) -> list[str]:
    """Where the slices of a kind do not tile a tensor: an element that no rank holds, or one held
    more often than the first. ``num_elements``: the size of each tensor. Empty when every element
    of each is held equally often."""
    faults = []
    num_elements = dict(num_elements)
    check_whole(0, 10**8, **{f"elements of {name}": size for name, size in num_elements.items()})
    for kind in dict.fromkeys(shards.kind.tolist()):
        rows = [row for row in shards.rows() if row[1] == kind and row[2] not in NO_TENSOR]
        held = {name: np.zeros(size, dtype=np.int64) for name, size in num_elements.items()}
        for _, _, tensor, start, stop, _, _ in rows:
            if tensor not in held or stop > num_elements[tensor]:
                faults.append(f"{kind}: {tensor} has no elements [{start}, {stop})")
            else:
                held[tensor][start:stop] += 1
        for tensor, counts in held.items():
            if len(counts) and (counts.min() == 0 or counts.min() != counts.max()):
                usual = counts.max() if counts.min() == 0 else counts[0]
                odd = int(np.argmax(counts != usual))
                faults.append(
                    f"{kind}: element {odd} of {tensor} is held by {counts[odd]} ranks, others by "
                    f"{usual}"
                )
    return faults


def differences(ours: Shards, theirs: Shards, kinds: Iterable[str] = ()) -> list[str]:
    """Each slice that only one of two holds, as a line of text; of some kinds only, if they are
    named. Of the place it counts whether it is the host: any other is the rank's device."""
    chosen = set(kinds)
    return _only(ours, theirs, chosen) + _only(theirs, ours, chosen)


def _only(mine: Shards, other: Shards, kinds: set[str]) -> list[str]:
    """The slices of these kinds (of all, if there are none) that the other does not hold."""
    known = {_placed(row) for row in other.rows()}
    lines = []
    for row in mine.rows():
        rank, kind, tensor, start, stop, dtype, device = row
        if _placed(row) not in known and (not kinds or kind in kinds):
            what = f"rank {rank}, {kind} {tensor} [{start}, {stop}) {dtype} on {device}"
            lines.append(f"only {mine.origin}: {what}")
    return lines


def _placed(row: tuple) -> tuple:
    """A row whose device is "host" or "device", whatever the device is called."""
    return (*row[:-1], "host" if row[-1] == "host" else "device")


def join(parts: Iterable[Shards]) -> Shards:
    """What several ranks hold, from what each of them has told. Raises ValueError where there are
    none."""
    parts = list(parts)
    if not parts:
        raise ValueError("Shards are joined from one part or more; got none")
    notes = dict.fromkeys(chain.from_iterable(part.notes for part in parts))
    return from_rows(
        chain.from_iterable(part.rows() for part in parts),
        num_ranks=parts[0].num_ranks,
        origin=parts[0].origin,
        notes=notes,
    )
