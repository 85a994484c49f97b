"""Laws of counting, on real ranks: payload is exact under the name that was called, in every form a
call has; the wire carries what the algorithm must send, and little more."""

import contextlib
import socket
import sys

import pytest
import torch

import labkit as lab
from labkit.measure import traffic

LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux counts the bytes of a socket"
)
BIG = 2**18
"""float32: 1 MiB"""


def counts(counted):
    return dict(counted.calls), dict(counted.payload_bytes)


def test_every_operator_of_communication_is_counted():
    groups = [
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("c10d::")
        and "ProcessGroup process_group" in str(torch._C._get_schema(name, ""))
    ]
    assert {name.removeprefix("c10d::") for name in groups} == set(traffic.CALLS)
    for name, (_, position) in traffic.CALLS.items():
        schema = torch._C._get_schema(f"c10d::{name}", "")
        inputs = [argument.name.startswith("input") for argument in schema.arguments]
        taken = inputs.index(True) if True in inputs else 0
        assert position in (taken, None)


def steps_with_hooks():
    """What is counted in DDP's third step, by its hook."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    from labkit.measure import traffic

    def by_hand(state, bucket):
        future = dist.all_reduce(
            bucket.buffer().div_(dist.get_world_size()), async_op=True
        ).get_future()
        return future.then(lambda done: done.value()[0])

    power = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, warm_start=False
    )
    hooks = {
        "none": (),
        "fp16": (None, default_hooks.fp16_compress_hook),
        "by hand": (None, by_hand),
        "power": (power, powerSGD_hook.powerSGD_hook),
    }
    found = {}
    for name, hook in hooks.items():
        layers = torch.nn.Sequential(*(torch.nn.Linear(300, 300, bias=False) for _ in range(4)))
        # with two buckets, PowerSGD's later calls race each other on gloo's threads, and ranks
        # disagree
        model = DistributedDataParallel(layers, bucket_cap_mb=25 if name == "power" else 0.7)
        if hook:
            model.register_comm_hook(*hook)
        for _ in range(3):  # the first builds the buckets anew; PowerSGD begins with the third
            with traffic.count() as counted:
                model(torch.ones(2, 300)).sum().backward()
        found[name] = counted
    with traffic.count() as found["no_sync"], model.no_sync():
        model(torch.ones(2, 300)).sum().backward()
    return found


def test_ddp_reduces_each_gradient_once_and_a_hook_what_it_makes_of_it():
    for found in lab.launch(steps_with_hooks, ranks=2):
        gradients = 4 * 300 * 300 * 4
        buckets = found["none"].calls["all_reduce"]
        assert buckets == 2 and counts(found["none"]) == (
            {"all_reduce": buckets},
            {"all_reduce": gradients},
        )
        assert counts(found["fp16"]) == ({"all_reduce": buckets}, {"all_reduce": gradients // 2})
        assert counts(found["by hand"]) == counts(found["none"])
        # nothing uncompressed, then P and Q of 4 matrices, 300 numbers each: called from gloo's own
        # threads
        assert counts(found["power"]) == ({"all_reduce": 3}, {"all_reduce": 2 * 4 * 300 * 4})
        assert counts(found["no_sync"]) == ({}, {})


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_fsdp_gathers_and_scatters_under_its_own_names_padding_included(num_ranks):
    def step():
        import torch
        from torch.distributed.fsdp import fully_shard

        from labkit.measure import traffic

        model = torch.nn.Linear(
            100, 50
        )  # rows are dealt out: 50 of them on 3 ranks are padded to 51
        fully_shard(model)
        with traffic.count() as counted:
            model(torch.ones(2, 100)).sum().backward()
        return counted

    rows = -(-50 // num_ranks)
    for counted in lab.launch(step, ranks=num_ranks):
        part = rows * 100 * 4 + rows * 4
        assert counts(counted) == (
            {"all_gather": 1, "reduce_scatter": 1},
            {"all_gather": part, "reduce_scatter": num_ranks * part},
        )


def test_a_dtensor_counts_what_its_redistribution_calls():
    def redistribute():
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

        from labkit.measure import traffic

        sharded = distribute_tensor(torch.ones(8, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
        found = {}
        for name, start, end in (
            ("all_gather", sharded, Replicate()),
            ("all_reduce", sharded.sum(0), Replicate()),
        ):
            assert name == "all_gather" or isinstance(start.placements[0], Partial)
            with traffic.count() as found[name]:
                start.redistribute(placements=[end]).to_local() + 1
        return found

    for found in lab.launch(redistribute, ranks=2):
        assert counts(found["all_gather"]) == ({"all_gather": 1}, {"all_gather": 4 * 4 * 4})
        assert counts(found["all_reduce"]) == ({"all_reduce": 1}, {"all_reduce": 4 * 4})


@LINUX
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_gloo_sends_what_its_rings_must_and_little_more(num_ranks):
    def collectives(num_elements):
        import torch
        import torch.distributed as dist

        from labkit.measure import traffic

        n = dist.get_world_size()
        whole, part = torch.ones(num_elements), torch.ones(num_elements // n)
        forms = {
            "all_reduce": lambda: dist.all_reduce(whole),
            "all_gather": lambda: dist.all_gather_single(whole, part),
            "reduce_scatter": lambda: dist.reduce_scatter_single(part, whole),
            "broadcast": lambda: dist.broadcast(whole, 0),
        }
        found = {}
        for name, form in forms.items():
            dist.barrier()
            with traffic.count() as found[name]:  # its sockets are opened inside, too
                form()
        return found

    num_bytes = 4 * BIG * 3
    run = lab.launch(collectives, BIG * 3, ranks=num_ranks)
    once = (num_ranks - 1) / num_ranks * num_bytes
    for name, expected in (
        ("all_reduce", 2 * once),
        ("all_gather", once),
        ("reduce_scatter", 2 * once),
    ):
        for found in run:
            assert expected <= found[name].sent_bytes < 1.01 * expected
            assert expected <= found[name].received_bytes < 1.01 * expected
    for way in ("sent_bytes", "received_bytes"):
        total = sum(getattr(found["broadcast"], way) for found in run)
        assert (num_ranks - 1) * num_bytes <= total < 1.01 * (num_ranks - 1) * num_bytes


def pair():
    """Two ends of one TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


@LINUX
def test_only_tcp_is_the_wire_and_only_within_the_block():
    old, unix = pair(), socket.socketpair()
    old[0].sendall(bytes(70))
    with traffic.count() as counted:
        old[0].sendall(bytes(1000))
        unix[0].sendall(bytes(5000))
        new, closed = pair(), pair()
        new[0].sendall(bytes(100))
        for end in closed:
            end.close()
    new[0].sendall(bytes(70))
    for end in (*old, *unix, *new):
        end.close()
    assert (counted.sent_bytes, counted.received_bytes) == (1100, 1100)


@LINUX
def test_bytes_that_wait_to_be_sent_are_counted_too():
    one, other = pair()
    with one, other:
        one.setblocking(False)
        with traffic.count() as counted:
            handed_over = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    handed_over += one.send(bytes(1_000_000))
        assert counted.sent_bytes == handed_over > counted.received_bytes > 0


def test_blocks_nest_survive_an_exception_and_leave_torch_as_it_was():
    def nested():
        import torch
        import torch.distributed as dist
        from torch.distributed.tensor.debug import CommDebugMode

        from labkit.measure import traffic

        def kernels():
            return torch._C._dispatch_dump("c10d::allreduce_").count("BackendSelect")

        x, before = torch.ones(10), kernels()
        with traffic.count() as outer:
            dist.all_reduce(x)
            try:
                with traffic.count() as inner:
                    dist.all_reduce(x)
                    with CommDebugMode():
                        dist.all_reduce(x)
                    during = kernels()
                    raise KeyError
            except KeyError:
                pass
            dist.all_reduce(x)
        dist.all_reduce(x)
        assert before == kernels() == 0 and during == 1
        return outer, inner

    for outer, inner in lab.launch(nested, ranks=2):
        assert (outer.calls["all_reduce"], inner.calls["all_reduce"]) == (4, 2)
        assert (outer.payload_bytes["all_reduce"], inner.payload_bytes["all_reduce"]) == (160, 80)
        if sys.platform == "linux":
            assert outer.sent_bytes > inner.sent_bytes > 0


def test_the_largest_call_is_told_beside_the_sum_of_all():
    def uneven():
        import torch.distributed as dist

        with traffic.count() as counted:
            for length in (3, 10, 1):
                dist.all_reduce(torch.ones(length))
        return dict(counted.payload_bytes), dict(counted.largest_bytes)

    assert list(lab.launch(uneven, ranks=2)) == 2 * [({"all_reduce": 56}, {"all_reduce": 40})]


def test_the_other_end_of_a_message_is_told_where_it_is_named():
    def messages():
        import torch.distributed as dist

        with traffic.count() as counted:
            if dist.get_rank() == 1:
                dist.send(torch.ones(3), 0)
                dist.send(torch.ones(3), 0)
            else:
                dist.recv(torch.ones(3), 1)
                dist.recv(torch.ones(3))  # from whoever comes
        return counted.peers

    received, sent = lab.launch(messages, ranks=2)
    assert received == [("recv", 1), ("recv", None)]
    assert sent == [("send", 0), ("send", 0)]


def test_where_the_system_does_not_say_the_wire_is_none_not_zero(monkeypatch):
    with traffic.count() as counted:
        assert counted.sent_bytes is None
    monkeypatch.setattr(sys, "platform", "darwin")
    with traffic.count() as counted:
        pass
    assert counted.sent_bytes is None and counted.received_bytes is None
    assert repr(counted) == "Counted(no calls; wire: no number)"


def test_sparse_gradients_count_their_indices_and_values():
    sparse = torch.sparse_coo_tensor([[1, 5]], torch.ones(2, 3), (1000, 3), check_invariants=True)
    assert traffic._num_bytes([sparse]) == 2 * 8 + 6 * 4
