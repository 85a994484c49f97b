"""Laws of incremental saves, on real ranks: what has not changed is written once."""

import torch
from small_training import build, train, whole

import labkit as lab
from labkit.recovery import checkpoint


def bytes_written(folder, frozen, kind):
    net, optimizer = build("ddp", frozen=frozen)
    sizes = []
    tensors = []
    for step in range(3):
        train(net, optimizer, [step])
        sizes.append(
            checkpoint.about(checkpoint.save(folder, step, net, optimizer, kind=kind))[
                "written_bytes"
            ]
        )
        tensors.append(whole(net, optimizer))
    changed = sum(
        each.nbytes for name, each in tensors[2].items() if not torch.equal(each, tensors[1][name])
    )
    return sizes, changed, sum(each.nbytes for each in tensors[2].values())


def test_incremental_saves_what_is_frozen_and_adam_changes_all_the_rest(tmp_path):
    """The bytes of values; each file has a header of some 200 bytes beside, and rest.pt is not
    counted."""
    found = {}
    for name, frozen in (("all trained", ()), ("half frozen", (0, 1, 5))):
        sizes, changed, total = lab.launch(
            bytes_written,
            tmp_path / name,
            frozen,
            "incremental",
            ranks=1,
            backend="gloo",
            timeout_s=40,
        )[0]
        assert sizes[1] == sizes[2] <= sizes[0]
        found[name] = (sizes[0] - sizes[2], changed / total)
    assert found["all trained"][1] > 0.98 and found["half frozen"][1] < 0.8
    assert (
        found["half frozen"][0] > 4 * (2 * 110 + 77) - 110 * 4
    )  # the embedding (tied), the linear layer
    assert found["all trained"][0] < 4 * 1 + 1000  # the buffer and its header


def test_a_link_lives_longer_than_the_checkpoint_it_came_from(tmp_path):
    lab.launch(
        bytes_written, tmp_path, (0, 1, 5), "incremental", ranks=2, backend="gloo", timeout_s=40
    )
    newest = checkpoint.checkpoints(tmp_path)
    assert [checkpoint.about(path)["step"] for path in newest] == [
        2,
        1,
    ]  # not 0, whose files they link
    assert [checkpoint.fault(path) for path in newest] == ["", ""]
    assert any(file.stat().st_nlink == 2 for file in newest[0].glob("*.safetensors"))
