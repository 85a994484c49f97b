"""Programs of chapter 06 beside data parallelism."""

import torch

from labkit.zero import by_hand_run


class _Layer:
    """A layer that fills its weight when it is gathered."""

    def __init__(self, weight):
        self.weight = weight

    def gather(self):
        self.weight.data.fill_(3)


def _program(num_steps):
    net = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(net.weight)
    return [float(step) for step in range(num_steps)], net, None


def _sharded(num_steps):
    losses, net, optimizer = _program(num_steps)
    return losses, net, optimizer, [_Layer(net.weight)]


def test_three_steps_in_both_types_and_sharded_layers_are_gathered():
    found = by_hand_run.after_three(_program)
    assert found["program"] == "_program" and found["loss"] == 2.0
    assert found["fp32"].dtype == torch.float32 and found["fp64"].dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32
    assert by_hand_run.after_three(_sharded)["fp32"].tolist() == [3, 3]


def test_the_largest_difference_of_any_rank_stands_beside_the_losses():
    right = [by_hand_run.after_three(_program)] * 2
    ran = [right[0], by_hand_run.after_three(_sharded)]
    text = str(by_hand_run.beside(right, ran))
    assert "2.00000" in text and "loss," in text and "at most, fp64" in text and " 2" in text


def _trained(num_steps, halved):
    """Two weights of 64 bytes each; ``halved`` keeps half of a gradient once it is there."""
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(2)))
    mine = {w: torch.nn.Parameter(w.data[:2]) if halved else w for w in net.parameters()}

    def keep(weight):
        mine[weight].grad = weight.grad[:2].clone()
        weight.grad = None

    for weight in net.parameters() if halved else ():
        weight.register_post_accumulate_grad_hook(keep)
    optimizer = torch.optim.SGD(mine.values())
    for _ in range(num_steps):
        optimizer.zero_grad()
        net(torch.ones(1, 4)).sum().backward()
        optimizer.step()


def test_gradients_are_counted_where_they_are_most():
    assert by_hand_run.most_gradient_bytes(lambda steps: _trained(steps, halved=False)) == 128
    assert by_hand_run.most_gradient_bytes(lambda steps: _trained(steps, halved=True)) == 96


def _resizing(num_steps):
    """A storage of 16 bytes freed and gathered in each step, by a program of one rank."""
    losses, net, _ = _program(num_steps)
    optimizer = torch.optim.SGD(net.parameters())
    whole = torch.zeros(4)
    whole.untyped_storage().resize_(0)
    for _ in range(num_steps):
        whole.untyped_storage().resize_(16)
        whole.untyped_storage().resize_(0)
        optimizer.step()
    return losses, net, optimizer


def test_resized_storages_are_followed_over_the_last_step():
    resize = torch.UntypedStorage.resize_
    assert by_hand_run.after_three(_resizing)["whole_bytes"] == [16, 0]
    assert by_hand_run.after_three(_program)["whole_bytes"] == []
    assert torch.UntypedStorage.resize_ is resize


def test_live_bytes_count_what_a_program_returns():
    assert by_hand_run.live_bytes(lambda steps: torch.zeros(5 * steps)) == 40
