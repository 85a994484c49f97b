"""The exercises of chapter 13: the right answers pass, and each usual mistake is named."""

import math
import os

import pytest
import torch
from torch import distributed as dist

import labkit as lab
from labkit.recovery import check, checkpoint, how_often

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("safe_save", "num_gpus", "elastic")


def stub(*_):
    raise NotImplementedError("your turn")


def everything(net, optimizer, scheduler, step, args):
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, torch.get_rng_state())
    return {
        "model": net.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "step": step,
        "args": vars(args),
        "rng": states,
    }


def put(whole, file, sync=True):
    part = file.with_suffix(".part")
    with open(part, "wb") as stream:
        torch.save(whole, stream)
        stream.flush()
        if sync:
            os.fsync(stream.fileno())
    os.replace(part, file)


def safe(file, *state):
    whole = everything(*state)
    if dist.get_rank() == 0:
        put(whole, file)


def by_halves(write_s, copy_s):
    """The fewest GPUs, nearly, from Daly's cost function on a grid of intervals."""

    def lost(save_s, mtbf_s):
        every = [mtbf_s * 10 ** (-5 + 0.005 * i) for i in range(1060)]
        return min(how_often.lost_share(each, save_s, mtbf_s) for each in every)

    low, high = 1.0, 1e6
    while high / low > 1.0005:
        mtbf_s = 3600 * how_often.GPU_HOURS / (low * high) ** 0.5
        if lost(write_s, mtbf_s) - lost(copy_s, mtbf_s) < 0.01:
            low = (low * high) ** 0.5
        else:
            high = (low * high) ** 0.5
    return math.ceil(low)


def one_rank(training, save=checkpoint.save, load=True, every=None):
    net, optimizer = training.build()
    step = 0
    if load and checkpoint.checkpoints(training.folder):
        step = checkpoint.load(training.folder, net, optimizer)["step"]
    while step < training.num_steps:
        training.step(net, optimizer, step)
        step += 1
        if step % (every or training.every) == 0:
            save(training.folder, step, net, optimizer)
    return net.module.state_dict()


def again(training, fn=one_rank, *args, starts=None, ranks=None):
    for left in reversed(range(starts or training.max_restarts + 1)):
        try:
            return training.launch(fn, training, *args, ranks=ranks or training.ranks_left())
        except lab.RankFailed:
            if not left:
                raise


REFERENCES = dict(zip(EXERCISES, (safe, by_halves, again), strict=True))


@pytest.mark.again
@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", ""), verdict


def test_a_stub_in_the_rank_is_not_attempted():
    assert check.elastic(lambda training: again(training, stub)).state == "not attempted"


def namespace(file, net, optimizer, scheduler, step, args):
    whole = everything(net, optimizer, scheduler, step, args) | {"args": args}
    if dist.get_rank() == 0:
        put(whole, file)


def in_place(file, *state):
    whole = everything(*state)
    if dist.get_rank() == 0:
        with open(file, "wb") as stream:
            torch.save(whole, stream)


def straight(file, *state):
    whole = everything(*state)
    if dist.get_rank() == 0:
        torch.save(whole, file)


def everybody(file, *state):
    put(everything(*state), file.with_name(f"{file.stem}-{dist.get_rank()}.pt"))
    dist.barrier()
    if dist.get_rank() == 0:
        os.replace(file.with_name(f"{file.stem}-0.pt"), file)


def lazy(file, *state):
    whole = everything(*state)
    if dist.get_rank() == 0:
        put(whole, file, sync=False)


def without(key):
    def answer(file, *state):
        whole = {name: each for name, each in everything(*state).items() if name != key}
        if dist.get_rank() == 0:
            put(whole, file)

    return answer


def wrapped(file, net, *state):
    whole = everything(net, *state) | {"model": net.state_dict()}
    if dist.get_rank() == 0:
        put(whole, file)


def removing(file, *state):
    whole = everything(*state)
    if dist.get_rank() == 0:
        file.unlink(missing_ok=True)
        put(whole, file)


def own_random(file, *state):
    whole = everything(*state) | {"rng": [torch.get_rng_state()]}
    if dist.get_rank() == 0:
        put(whole, file)


def weights_only(training):
    net, optimizer = training.build()
    step = (
        checkpoint.load(training.folder, net)["step"]
        if checkpoint.checkpoints(training.folder)
        else 0
    )
    while step < training.num_steps:
        training.step(net, optimizer, step)
        step += 1
        if step % training.every == 0:
            checkpoint.save(training.folder, step, net)
    return net.module.state_dict()


def half_written(training):
    net, optimizer = training.build()
    file = training.folder / "last.pt"
    step = 0
    if file.exists():
        found = torch.load(file, weights_only=True)
        net.load_state_dict(found["net"])
        optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    while step < training.num_steps:
        training.step(net, optimizer, step)
        step += 1
        if step % training.every == 0 and dist.get_rank() == 0:
            torch.save(
                {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file
            )
        dist.barrier()
    return net.state_dict()


def endless(training):
    while True:
        try:
            return training.launch(one_rank, training, ranks=training.ranks_left())
        except lab.RankFailed:
            pass


def swallowing(training):
    try:
        return again(training)
    except lab.RankFailed:
        return None


def one_short(training):
    again(training)


def off_by_one(training):
    net, optimizer = training.build()
    step = (
        checkpoint.load(training.folder, net, optimizer)["step"]
        if checkpoint.checkpoints(training.folder)
        else 0
    )
    while step < training.num_steps:
        training.step(net, optimizer, step)
        if step % training.every == 0:
            checkpoint.save(training.folder, step, net, optimizer)  # step is trained already
        step += 1
    return net.module.state_dict()


def short(training):
    net, optimizer = training.build()
    for step in range(3):
        training.step(net, optimizer, step)
    return net.module.state_dict()


@pytest.mark.a_few(6)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("safe_save", namespace, "2 ranks, rank 0: torch.load(weights_only=True) refuses it"),
        (
            "safe_save",
            in_place,
            "the file is written in place: who is killed there leaves half of it",
        ),
        ("safe_save", straight, "the file is written in place"),
        ("safe_save", everybody, "ranks [0, 1] write; one file has one writer, rank 0"),
        ("safe_save", lazy, "no os.fsync before the rename"),
        ("safe_save", without("scheduler"), "the key 'scheduler' is missing"),
        ("safe_save", wrapped, "'model' holds OrderedDict"),
        ("safe_save", own_random, "'rng' holds"),
        (
            "safe_save",
            removing,
            "2 ranks, rank 0 killed in the midst of its second write: the file of step 1 is gone",
        ),
        ("safe_save", lambda *_: None, "last.pt is not there"),
        (
            "num_gpus",
            lambda write_s, copy_s: 3600 * how_often.GPU_HOURS / (2e4 * (write_s - copy_s)),
            "1 s instead of 60 s for a save: with 155 GPUs it saves ",
        ),
        ("num_gpus", lambda write_s, copy_s: 1000, "with 1,000 GPUs it saves "),
        ("num_gpus", lambda write_s, copy_s: 0, "0 is no number of GPUs here"),
        (
            "elastic",
            lambda training: again(training, weights_only),
            "the weights were loaded, and Adam began anew",
        ),
        (
            "elastic",
            lambda training: again(training, half_written),
            "after step 6: the start after it ended so: rank ",
        ),
        (
            "elastic",
            endless,
            "2 ranks, a bug raises at step 4 in every start: started 7 times and still not giving "
            "up",
        ),
        ("elastic", swallowing, "no verdict came out; a bug in the code is not cured by a restart"),
        ("elastic", one_short, "a Run comes back, and run[0] is a state_dict"),
        (
            "elastic",
            lambda training: again(training, off_by_one),
            "steps were trained twice on the same weights",
        ),
        (
            "elastic",
            lambda training: again(training, short),
            "training ended after step 2, the last is 8",
        ),
        (
            "elastic",
            lambda training: again(training, ranks=training.ranks),
            "asked for 3 ranks; 2 are left",
        ),
        (
            "elastic",
            lambda training: training.launch(one_rank, training, ranks=2),
            "rank 1 was killed by SIGKILL",
        ),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong", verdict
    assert words in verdict.counterexample, verdict.counterexample


@pytest.mark.a_few(1)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "elastic",
            lambda training: again(training, one_rank, checkpoint.save, False),
            "14 steps were trained, 11 are",
        ),
        (
            "elastic",
            lambda training: again(training, one_rank, checkpoint.save, True, 20),
            "14 steps were trained, 11",
        ),
    ],
)
def test_a_right_answer_that_costs_too_much_is_told_so(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "over budget", verdict
    assert words in verdict.counterexample, verdict.counterexample


def skipping(file, *state):
    if dist.get_rank() == 0:
        safe(file, *state)


def test_a_collective_on_one_rank_alone_is_a_verdict():
    verdict = check.safe_save(skipping)
    assert verdict.state == "wrong" and "all_gather" in verdict.counterexample, verdict


@pytest.mark.parametrize("rubbish", [3, "0F0", None, [None], {"rank": 1}])
def test_rubbish_is_wrong(rubbish):
    assert check.elastic(lambda training: rubbish).state == "wrong"
