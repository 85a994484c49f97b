"""Watches a forward under fake tensors, operator by operator: ``module_run`` makes a Shape of what
was seen."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

BEFORE, INSIDE, AFTER = "before", "inside", "after"
_ATTENTION = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
    torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_efficient_attention,
)


class Flash(TorchFunctionMode):
    """Attention as flash attention does it: a dropout there keeps a seed, and has no kernel on a
    CPU; a mask that the reader says is causal is none."""

    def __init__(self, seen: "Seen") -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        told = dict(zip(names, args, strict=False)) | (kwargs or {})
        told["dropout_p"] = 0.0
        if self.seen.causal is not None:
            told |= {"attn_mask": None, "is_causal": self.seen.causal}
        self.seen.attends(told)
        return func(**told)


@dataclass
class _Bytes:
    """Elements of the module's own type, and bytes of others."""

    elements: int = 0
    other: int = 0

    def add(self, tensor: Tensor, dtype: torch.dtype, num_bytes: int) -> None:
        """So many bytes of a tensor."""
        if tensor.dtype == dtype:
            self.elements += num_bytes // tensor.itemsize
        else:
            self.other += num_bytes


@dataclass
class _Tally:
    """What was seen inside or outside of the layers."""

    products: Counter = field(default_factory=Counter)
    attention_flops: int = 0
    kept: _Bytes = field(default_factory=_Bytes)
    moved: _Bytes = field(default_factory=_Bytes)


class Seen(TorchDispatchMode):
    """Watches the operators of a forward."""

    def __init__(self, layers: list[nn.Module], causal: bool | None) -> None:
        super().__init__()
        self.causal = causal
        self.layers = layers
        self.inside = _Tally()
        self.outside = _Tally()
        self.where = BEFORE
        self.rows = 0
        self.width = 0
        self.sequences = 1
        self.heads = 1
        self.masked = False
        self.used: dict[str, set[int]] = {BEFORE: set(), INSIDE: set(), AFTER: set()}
        self.names: dict[int, str] = {}
        self.dtype = torch.get_default_dtype()
        self.kinds: dict[tuple[str, int], list[Tensor]] = {}
        self._makers: dict[int, str] = {}
        self._kept: set[int] = set()
        self._alive: list[Tensor] = []

    def name_weights(self, state: Mapping[str, Tensor], path: str, num_layers: int) -> None:
        """Learns the weights' names inside of a layer, and the module's own type."""
        sizes: Counter = Counter()
        for name, tensor in state.items():
            inner = name.removeprefix(f"{path}.") if path else name
            self.names.setdefault(storage_key(tensor), inner.partition(".")[2] or inner)
            if tensor.is_floating_point():
                sizes[tensor.dtype] += tensor.numel()
        self.dtype = sizes.most_common(1)[0][0]
        self._alive += state.values()

    @property
    def tally(self) -> _Tally:
        """Where what is seen now counts."""
        return self.inside if self.where == INSIDE else self.outside

    def enter(self, index: int) -> Any:
        """A hook before a layer."""

        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            self.where = INSIDE
            stream = next((each for each in tree_iter((args, kwargs)) if _is_stream(each)), None)
            if not index and stream is not None:
                self.width = stream.shape[-1]
                self.rows = stream.numel() // self.width

        return hook

    def attends(self, told: Mapping[str, Any]) -> None:
        """Attention begins: how many heads, and whether it says that it is causal."""
        if self.where == INSIDE:
            self.heads = told["query"].shape[1]
            self.masked = bool(told.get("is_causal"))

    def leave(self, *_: Any) -> None:
        """A hook behind a layer."""
        self.where = AFTER

    def pack(self, tensor: Tensor) -> Tensor:
        """Autograd keeps a tensor: its storage counts once, a weight's never."""
        key = storage_key(tensor)
        if key not in self._kept and key not in self.names:
            self._kept.add(key)
            self._alive.append(tensor)  # or another one gets its number
            num_bytes = tensor.untyped_storage().nbytes()
            self.tally.kept.add(tensor, self.dtype, num_bytes)
            self.kinds.setdefault((self._makers.get(key, ""), num_bytes), []).append(tensor)
        return tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        inputs = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
        outputs = [each for each in tree_iter(made) if isinstance(each, Tensor)]
        lent = {storage_key(each) for each in inputs}
        self.used[self.where] |= lent & self.names.keys()
        packet = func._overloadpacket
        fresh = {storage_key(each) for each in outputs} - lent
        self._makers |= dict.fromkeys(fresh, packet.__name__)
        if packet in _ATTENTION:
            shapes = [each.shape for each in inputs[:3]]
            self.tally.attention_flops += sdpa_flop_count(*shapes)
        elif packet in flop_registry:
            self._multiply(flop_registry[packet](*args, **(kwargs or {}), out_val=made), inputs)
        elif outputs:
            self._move(func, inputs, outputs, views=not fresh)
        return made

    def _multiply(self, flops: int, inputs: list[Tensor]) -> None:
        """By a weight it is a product of the layer; of two activations, attention."""
        weight = next((each for each in inputs if self._is_weight(each)), None)
        if weight is None:
            self.tally.attention_flops += flops
            return
        inner = inputs[-1].shape[-2] if weight is inputs[-1] else weight[0].numel()
        self.tally.products[self.names[storage_key(weight)], inner] += flops

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor.dim() > 1 and storage_key(tensor) in self.names

    def _move(self, func: Any, inputs: list[Tensor], outputs: list[Tensor], *, views: bool) -> None:
        """What a kernel reads and writes; a view does neither."""
        if views and not func._schema.is_mutable:
            return
        for tensor in (*inputs, *outputs):
            if storage_key(tensor) not in self.names:
                self.tally.moved.add(tensor, self.dtype, tensor.numel() * tensor.itemsize)


def _is_stream(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 1 and value.is_floating_point()


def storage_key(tensor: Tensor) -> int:
    """Which storage a tensor has, while it lives."""
    return tensor.untyped_storage()._cdata
