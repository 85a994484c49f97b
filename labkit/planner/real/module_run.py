"""A module of the reader's own, measured without running it: under torch's fake tensors, which have
shapes and no bytes.

    shape = planner.measured(module, example)       # the module may lie on the meta device
    planner.Plan(model=shape, gpus=64, zero=3, seq=shape.seq)

Parameters are counted, FLOPs are torch's own (``torch.utils.flop_counter``), and what autograd
saves for the backward is read by ``saved_tensors_hooks``. The forward runs as on a CPU: attention
through ``scaled_dot_product_attention`` keeps what flash attention keeps.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_iter, tree_map_only

from labkit.planner.plan.shape import Product
from labkit.planner.real.counted import Counted, Kept
from labkit.planner.real.seen_run import AFTER, BEFORE, INSIDE, Flash, Seen, storage_key

LEAST_LAYERS = 2


def measured(
    module: nn.Module, example: Any, *, name: str = "", causal: bool | None = None
) -> Counted:
    """What the planner needs to know of a module: ``planner.Plan(model=...)`` takes it.

    ``example``: what its forward takes, a tensor, a tuple of them or a dict by name, on any device,
    as many rows a sequence as the plan has. The largest row of equal submodules are its layers.
    ``causal``: whether attention leaves out what lies ahead; None: as the module says it to
    ``scaled_dot_product_attention``. A mask that is a tensor says nothing (transformers makes one
    where it can't read values, as here: say True).
    Raises ValueError for what is no module, has no such layers, or can't be run on the example.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"a torch.nn.Module is measured; got {type(module).__name__}")
    if not any(isinstance(each, Tensor) for each in tree_iter(example)):
        raise ValueError(
            "a measurement runs the forward once: give an example of what it takes, a tensor, a "
            f"tuple or a dict, e.g. torch.zeros(1, 2048, dtype=torch.long); got {example!r}"
        )
    path, layers = repeated(module)
    seen = Seen(layers, causal)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        state = _fake_state(module)
        seen.name_weights(state, path, len(layers))
        given = tree_map_only(Tensor, _fake, example)
        _forward(module, state, given, seen)
    if not seen.rows:
        raise ValueError(f"the forward never went through {path}, the layers that were found")
    return _counted(module, seen, path, name or type(module).__name__)


def repeated(module: nn.Module) -> tuple[str, list[nn.Module]]:
    """(path, layers): the largest row of neighbours of one class and as many parameters. Raises
    ValueError where no two such are found, or where they are one."""
    found: list[tuple[int, str, list[nn.Module]]] = []
    for path, parent in module.named_modules():
        for row in _rows(parent):
            if len({id(each) for each in row}) == len(row) >= LEAST_LAYERS:
                found.append((len(row) * _size(row[0]), path, row))
    if not found:
        raise ValueError(
            "a plan needs to know which layers repeat: two or more submodules of one class and as "
            "many parameters, side by side in an nn.ModuleList or nn.Sequential, none of them "
            f"twice; {type(module).__name__} has none"
        )
    _, path, row = max(found, key=lambda each: each[0])
    weights = _weights(row)
    if len({id(each) for each in weights}) < len(weights):
        raise ValueError(
            f"the layers in {path or 'the module'} share weights: a plan has none such"
        )
    return path, row


def _rows(parent: nn.Module) -> Iterator[list[nn.Module]]:
    """Neighbours among a module's children that are alike."""
    row: list[nn.Module] = []
    for child in parent.children():
        if row and (type(child), _size(child)) != (type(row[0]), _size(row[0])):
            yield row
            row = []
        if _size(child):
            row.append(child)
    yield row


def _weights(layers: Iterable[nn.Module]) -> list[Tensor]:
    """The parameters of all layers."""
    return list(chain.from_iterable(layer.parameters() for layer in layers))


def _size(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def _fake(tensor: Tensor) -> Tensor:
    """The same without bytes, on the default device."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype)
    return made.requires_grad_(tensor.requires_grad)


def _fake_state(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, without bytes; shared ones stay one."""
    made: dict[int, Tensor] = {}
    state = {}
    for find in (module.named_parameters, module.named_buffers):
        for name, tensor in find(remove_duplicate=False):
            if id(tensor) not in made:
                made[id(tensor)] = _fake(tensor)
            state[name] = made[id(tensor)]
    return state


def _forward(module: nn.Module, state: dict[str, Tensor], given: Any, seen: "Seen") -> None:
    """One forward, watched; hooks are taken off again."""
    hooks = []
    for index, layer in enumerate(seen.layers):
        hooks.append(layer.register_forward_pre_hook(seen.enter(index), with_kwargs=True))
        hooks.append(layer.register_forward_hook(seen.leave))
    args = given if isinstance(given, tuple) else (given,)
    kwargs = {}
    if isinstance(given, Mapping):
        args = ()
        kwargs = dict(given)
    seen.sequences = next(each for each in tree_iter(given) if isinstance(each, Tensor)).shape[0]
    try:
        with torch.enable_grad(), saved_tensors_hooks(seen.pack, _same), seen, Flash(seen):
            torch.func.functional_call(module, state, args, kwargs, tie_weights=False)
    except Exception as error:
        raise ValueError(
            f"{type(module).__name__} can't be measured: its forward fails on the example without "
            f"values ({type(error).__name__}: {error}). Give what it takes in training; a forward "
            "that reads values (.item(), if on a tensor) can't be measured"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _counted(module: nn.Module, seen: Seen, path: str, name: str) -> Counted:
    """The numbers as a Shape: by row of the stream and layer."""
    num_layers = len(seen.layers)
    each = seen.rows * num_layers
    products = []
    for (weight, inner), flops in seen.inside.products.items():
        products.append(Product(weight, inner, _whole(flops / (2 * each * inner)), ""))
    whole = {id(weight): weight.numel() for weight in module.parameters()}
    inner_params = sum(weight.numel() for weight in _weights(seen.layers))
    sizes = {storage_key(tensor): tensor.numel() for tensor in seen._alive if tensor.requires_grad}
    late = (seen.used[AFTER] - seen.used[BEFORE]) - seen.used[INSIDE]
    after = _sum(sizes, late)
    shared = _sum(sizes, seen.used[AFTER] & seen.used[BEFORE])
    outer_flops = (sum(seen.outside.products.values()) + seen.outside.attention_flops) / seen.rows
    inside = seen.inside
    size = torch.empty((), dtype=seen.dtype).itemsize
    outer_bytes = size * seen.outside.kept.elements + seen.outside.kept.other
    return Counted(
        name=name,
        layers=num_layers,
        hidden=seen.width,
        heads=seen.heads if seen.width % seen.heads == 0 else 1,
        vocab=max(1, round(outer_flops / (2 * seen.width))),
        tied=shared > 0,
        counted_products=tuple(products),
        counted_layer_params=inner_params / num_layers,
        before_params=sum(whole.values()) - inner_params - after,
        after_params=after,
        shared_params=shared,
        seq=max(1, seen.rows // seen.sequences),
        attention_row_flops=inside.attention_flops / each,
        masked=seen.masked if seen.causal is None else seen.causal,
        kept_elements=inside.kept.elements / each,
        kept_other_bytes=inside.kept.other / each,
        outer_kept_bytes=outer_bytes / seen.rows,
        moved_elements=inside.moved.elements / each,
        moved_other_bytes=inside.moved.other / each,
        outer_flops=outer_flops,
        itemsize=size,
        kept_tensors=_kept(seen),
    )


def _kept(seen: Seen) -> tuple[Kept, ...]:
    """What was saved, by operator and size, the most bytes first."""
    found = [
        Kept(operator, _shape(each[0], num_bytes), len(each), len(each) * num_bytes)
        for (operator, num_bytes), each in seen.kinds.items()
    ]
    return tuple(sorted(found, key=lambda kept: -kept.num_bytes))


def _shape(tensor: Tensor, num_bytes: int) -> tuple[int, ...]:
    """Of all that is kept: a part of a tensor keeps the whole."""
    is_whole = tensor._base is None or tensor.nbytes == num_bytes
    return tuple((tensor if is_whole else tensor._base).shape)


def _whole(number: float) -> float:
    """A whole number as one."""
    return int(number) if number == int(number) else number


def _sum(sizes: Mapping[int, int], keys: Iterable[int]) -> int:
    return sum(sizes.get(key, 0) for key in keys)
