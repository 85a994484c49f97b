"""What the ranks of ``test_through_host`` do: they take a device and its backend, and give back
numbers of the CPU."""

from pathlib import Path

import torch
import torch.distributed as dist
from collective_calls import CALLS, Tensors, all_to_all, mine
from engine_losses import ENGINES

from labkit.devices import pretend, through_host
from labkit.devices.rung import Pretend

Stand = tuple[str, str]
"""A backend of ours, and the type of device whose tensors it carries."""
STANDS: tuple[Stand, ...] = (("pretend", "pretend"), ("shared", "pretend"))
"""Where there is no GPU: gloo gets the bytes themselves, or copies."""
ON_GPU: Stand = ("shared", "cuda")
GLOO_GIVES_LISTS = torch.__version__ >= "2.13"
"""Whether gloo has ``all_to_all``; torch 2.11's has ``all_to_all_single`` alone."""


def join(stand: Stand, folder: str) -> str:
    """The type of device that the launch has given, or where pretend tensors are to be copied, that
    of a world which the rank joins instead."""
    backend, device = stand
    rank = dist.get_rank()
    num_ranks = dist.get_world_size()
    if dist.get_backend() == backend:
        torch.set_default_device(None)  # the calls name their devices
        return device
    pretend.install(Pretend(), num_devices=num_ranks, index=rank)
    carrier = through_host.Carrier(device=device, copies=True)
    through_host.register(backend, carrier)
    dist.barrier()
    dist.destroy_process_group()
    meeting = (Path(folder) / backend).as_uri()
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=num_ranks)
    return device


def every_collective(stand: Stand, folder: str) -> dict[str, tuple]:
    """Name -> what it gave on the device over ours, and on the CPU over gloo."""
    device = join(stand, folder)
    plain = dist.new_group(backend="gloo")
    gave = {}
    for call in CALLS:
        if call is all_to_all and not GLOO_GIVES_LISTS:
            continue
        ours = call(device, dist.group.WORLD)
        theirs = call("cpu", plain)
        gave[call.__name__] = (_on_cpu(ours), _on_cpu(theirs))
    return gave


def _on_cpu(tensors: Tensors) -> list:
    return [each.cpu().tolist() for each in tensors]


def by_wait(work: dist.Work) -> None:
    work.wait()


def by_asking(work: dist.Work) -> None:
    while not work.is_completed():
        pass


def by_synchronizing(work: dist.Work) -> None:
    work.synchronize()


def by_its_future(work: dist.Work) -> None:
    work.get_future().wait()


def by_a_call_after_it(work: dist.Work) -> None:
    done = work.get_future().then(lambda future: future.value()[0].clone())
    assert done.wait().device.type != "cpu"


WAYS = (by_wait, by_asking, by_synchronizing, by_its_future, by_a_call_after_it)
"""How one can learn that a call is done."""


def asynchronous(stand: Stand, folder: str) -> dict[str, list]:
    """Way of waiting -> the sum that stood on the device right after it."""
    device = join(stand, folder)
    sums = {}
    for way in WAYS:
        tensor = mine(device)
        way(dist.all_reduce(tensor, async_op=True))
        sums[way.__name__] = tensor.tolist()
    return sums


def two_at_once(stand: Stand, folder: str) -> list:
    """Two calls under way, waited for in the other order, twice each."""
    device = join(stand, folder)
    first = mine(device)
    second = mine(device, 3)
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
    for work in (*reversed(works), *works):
        work.wait()
    return [first.tolist(), second.tolist()]


def copied_when_called(stand: Stand, folder: str) -> dict[str, list]:
    """What stands where a call is to write, before and after one waits for it; what it read is
    changed meanwhile."""
    device = join(stand, folder)
    given = mine(device)
    out = torch.full((6 * dist.get_world_size(),), -1.0, device=device)
    work = dist.all_gather_single(out, given, async_op=True)
    given.zero_()
    dist.barrier()  # by now it is done everywhere
    before = out.tolist()
    work.wait()
    return {"before": before, "after": out.tolist()}


def in_a_subgroup(stand: Stand, folder: str) -> tuple[list, int | None]:
    """The sum over ranks 1 and 2 of three, and the sequence number of their group."""
    from labkit.launching.verdicts import introspect

    device = join(stand, folder)
    pair = dist.new_group([1, 2])
    tensor = mine(device)
    dist.all_reduce(tensor, group=pair)
    dist.barrier()
    last = introspect.collectives()["last"]
    number = last[pair.group_name] if dist.get_rank() else None
    return tensor.tolist(), number


def refusals(stand: Stand, folder: str) -> dict[str, str]:
    """A wrong call -> what was said of it."""
    device = join(stand, folder)
    here = mine(device)
    on_cpu = mine("cpu")
    wrong = {
        "a CPU tensor": lambda: dist.all_reduce(on_cpu),
        "a CPU output": lambda: dist.all_gather([on_cpu, on_cpu], here),
        "two shapes": lambda: dist.all_gather_single(here, here),
        "not contiguous": lambda: dist.all_reduce(here[::2]),
        "nobody sends": lambda: dist.irecv(here, 1 - dist.get_rank()).wait(_soon()),
    }
    said = {}
    for name, call in wrong.items():
        try:
            call()
        except (RuntimeError, ValueError) as error:
            said[name] = str(error)
    return said


def _soon() -> object:
    from datetime import timedelta

    return timedelta(milliseconds=100)


def every_engine(stand: Stand | None, folder: str) -> dict[str, list[float]]:
    """Engine -> its losses; without a stand on the CPU."""
    device = join(stand, folder) if stand else "cpu"
    return {engine.__name__: engine(device) for engine in ENGINES}


def leave_early(stand: Stand, folder: str) -> None:
    """Rank 1 returns; the others wait for it in a collective of ours."""
    device = join(stand, folder)
    if dist.get_rank() == 1:
        return
    dist.all_reduce(mine(device))
