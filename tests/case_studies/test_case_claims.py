"""What chapter 20 says of numbers, held against the package."""

from statistics import mean

import pytest

from labkit import collectives, planner
from labkit.case_studies import POLICIES, Perception, foreseen, llama, policy_parts, small, stories
from labkit.case_studies.story_run import Story, _net
from labkit.planner.models import DATA


def test_thirteen_billion_on_four_cards():
    case = llama.as_written()
    assert case.over_bytes == pytest.approx(19.4e9, rel=0.01) and case.plan.batch == 128
    time = case.plan.time()
    assert time.step_us == pytest.approx(19.5e6, rel=0.01)
    assert time.parts()["gather"] == pytest.approx(0.1e6, rel=0.05)  # of each microbatch
    host = llama.Case(name=case.name, plan=case.plan.but(offload="optimizer", recipe="mixed"))
    assert host.host_bytes == pytest.approx(234e9, rel=0.01)
    four = planner.Plan(model="LLaMA 13B", gpus=4, batch=128, seq=1024)
    searches = [planner.search(four.but(gpu=gpu)) for gpu in llama.CARDS.values()]
    fit = [llama.roomy(found, llama.FREE) for found in searches]
    assert [bool(each) for each in fit] == [False, False, True]
    assert fit[-1][0].layout.pp == 4


def test_three_strategies_for_ten_billion_by_one_program():
    shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
    story = planner.Plan(model=shape, gpus=8, batch=512, stack="megatron-a100")
    assert [story.but(zero=zero).fits for zero in (0, 1, 3)] == [False, False, True]
    others = [story.but(tp=8, sp=True), story.but(pp=8)]
    sharded_us = story.but(zero=3).time().step_us
    assert all(each.fits and each.time().step_us > sharded_us for each in others)
    by_fsdp_us = story.but(zero=3, stack="fsdp-a100").time().step_us
    assert by_fsdp_us > story.but(pp=8).time().step_us > 1.1 * sharded_us


def test_by_the_same_constants_the_pipeline_is_ahead_in_both_cases():
    four = planner.Plan(model="LLaMA 13B", gpu="A100 80 GB", gpus=4, batch=128, seq=1024)
    shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
    story = planner.Plan(model=shape, gpu="A100 80 GB", gpus=8, batch=512, seq=2048)
    leads = [
        plan.but(zero=3, stack="fsdp-a100").time().step_us
        / plan.but(pp=plan.gpus, stack="megatron-a100").time().step_us
        for plan in (four, story)
    ]
    assert leads == [pytest.approx(1.22, abs=0.01), pytest.approx(1.07, abs=0.01)]


def test_larger_microbatches_help_tensor_parallel_most_and_keep_the_order():
    shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
    story = planner.Plan(model=shape, gpu="A100 80 GB", gpus=8, batch=512, seq=2048)
    megatron = story.but(stack="megatron-a100", recipe="megatron")

    def best_s(*plans):
        tried = [plan.but(mbs=mbs) for plan in plans for mbs in (1, 2, 4, 8, 16)]
        return min(plan.time().step_us / 1e6 for plan in tried if plan.fits)

    sharded_s = best_s(megatron.but(zero=3))
    piped_s = best_s(*(megatron.but(pp=8, vpp=vpp) for vpp in (1, 2, 3, 6)))
    by_fsdp_s = best_s(story.but(zero=3, stack="fsdp-a100", recipe="fp32"))
    cut_s = best_s(megatron.but(tp=8, sp=True))
    assert sharded_s < piped_s < by_fsdp_s < cut_s == pytest.approx(52, abs=0.5)
    assert piped_s == pytest.approx(43, abs=0.1)
    one_s = megatron.but(pp=8).time().step_us / 1e6
    assert cut_s / one_s == pytest.approx(1.17, abs=0.005)


def test_of_the_program_s_own_bytes_sixteen_are_fsdps_and_eighteen_megatrons():
    assert not any("recipe" in row["layout"] for row in small.rows())
    four = planner.Plan(model="LLaMA 13B", gpu="A100 80 GB", gpus=4, batch=128, seq=1024)
    for plan, each in ((four.but(zero=3), 16), (four.but(tp=4), 18)):
        assert plan.memory().state_bytes == pytest.approx(each * plan.shape.params / 4, rel=0.01)


def test_the_output_layer_is_a_layer_more_for_ten_billion_and_half_a_one_for_thirteen():
    shape = planner.Shape(name="story 10B", layers=48, hidden=4096, heads=32)
    assert shape.vocab / (12 * shape.hidden) == pytest.approx(1.0, abs=0.05)
    large = planner.Plan(model="LLaMA 13B").shape
    assert large.vocab / (12 * large.hidden) == pytest.approx(0.5, abs=0.05)
    assert (large.layers / 4, shape.layers / 8) == (10, 6)


def test_two_runs_of_zero_3_foretell_the_third():
    runs, _ = planner.load(DATA / "published" / "megatron_sc21_table2.csv")
    early = [run for run in runs if run.id.startswith("sc21t2_z3_175B")]
    last = early[2]
    predicted = planner.predicted_us(last, planner.fit(early[:2]).stack(last)) / last.step_us()
    assert predicted == pytest.approx(0.94, abs=0.01)
    assert early[1].step_us() == last.step_us() == pytest.approx(66.7e6, rel=0.001)
    assert max(run.told["tflops_gpu"] for run in runs) == 171


def test_the_story_model_is_as_small_as_the_page_says():
    story = Story()
    assert (story.page, story.steps, story.vocabulary) == (500, 45, 400)
    weights = sum(weight.numel() for weight in _net(story.vocabulary).parameters())
    assert weights == 151_872 and stories.MIDDLE.params / weights > 30_000


def test_what_the_page_says_of_five_and_twenty_billion():
    plans = [*stories.plans().values()]
    assert [plan.fits for plan in plans] == [True, True, False, True, True]
    assert plans[0].time().step_us == plans[1].time().step_us
    assert plans[4].time().step_us / plans[3].time().step_us == pytest.approx(4 / 3, abs=0.03)


def test_the_fewest_bytes_are_slowest_on_a_quick_link_and_not_on_a_slow_one():
    for link, slowest, fastest in ((10, "top-k all", "fp16"), (1, "plain", "per layer")):
        rows = sorted(foreseen(mb_per_s=link), key=lambda row: row["predicted_us"])
        assert (rows[-1]["policy"], rows[0]["policy"]) == (slowest, fastest)
    told = {row["policy"]: row for row in foreseen()}
    assert (told["plain"]["messages"], told["top-k all"]["messages"]) == (4, 8)
    bytes_sent = {name: row["gradients_bytes"] for name, row in told.items()}
    assert bytes_sent["plain"] / bytes_sent["top-k all"] == pytest.approx(8, rel=0.01)
    assert told["plain"]["predicted_us"] == pytest.approx(63e3, rel=0.01)
    assert told["top-k all"]["predicted_us"] == pytest.approx(71e3, rel=0.01)
    with pytest.raises(ValueError, match="mb_per_s"):
        foreseen(mb_per_s=0)


def test_by_case_three_s_times_the_same_policy_is_slowest():
    times = {}
    for name, ways in POLICIES.items():
        runs = [Perception(ways=ways, steps=steps).slowed(3) for steps in (1, 2, 3, 4)]
        times[name] = mean(run.step_us() for run in runs)
    assert max(times, key=times.get) == "top-k all"


def test_a_larger_microbatch_saves_deepspeed_most_of_its_way_to_the_host():
    four = planner.Plan(model="LLaMA 13B", gpu="A100 40 GB", gpus=4, batch=128, seq=1024)
    written = llama.as_written()
    sharded = written.plan.but(offload="optimizer", recipe="mixed")
    larger = sharded.but(mbs=16)
    plans = [four.but(pp=4, offload="optimizer"), sharded, larger]
    rows = [llama.Case(name=written.name, plan=plan).row() for plan in plans]
    told = [(row["held_bytes"] / 1e9, row["host_bytes"] / 1e9) for row in rows]
    assert [each for pair in told for each in pair] == pytest.approx(
        [29.8, 156, 13.9, 234, 24.3, 234], rel=0.005
    )
    host_s = [llama.host_us(plan, plan.layout) / 1e6 for plan in plans]
    assert host_s == pytest.approx([2.7, 11.1, 3.8], abs=0.05)
    assert [row["step_us"] / 1e6 for row in rows] == pytest.approx([15.9, 30.5, 22.4], abs=0.05)
    stages_us, as_written_us, larger_us = (row["step_us"] for row in rows)
    assert as_written_us / stages_us == pytest.approx(1.93, abs=0.01)
    assert larger_us / stages_us == pytest.approx(1.41, abs=0.005)
    assert all(row["held_bytes"] < 0.9 * 40e9 for row in rows)
    counts = [plan.layout.num_microbatches for plan in (sharded, larger)]
    assert counts == [16, 2] and larger.recompute == "full"


def test_the_slow_pace_of_the_car_is_the_sum_by_hand():
    slow = Perception(placement="copied").slowed(3)
    assert slow.step_us() == pytest.approx(1e3 * (157.5 + 46.6), rel=1e-3)
    together = slow.but(placement="together")
    assert together.step_us() == pytest.approx(1e3 * (157.5 + 204), rel=2e-3)
    assert slow.message_us(1000) - slow.latency_us == pytest.approx(600)


def test_groups_apart_and_a_batch_by_speed():
    together = Perception()
    apart = together.but(placement="apart")
    assert apart.step_us() / together.step_us() == pytest.approx(1.77, abs=0.01)
    joined_us = together.step_us() - 3 * together.latency_us  # four messages of gradients in one
    copied_us = together.but(placement="copied").step_us()
    assert (joined_us, copied_us) == (
        pytest.approx(108.6e3, rel=1e-3),
        pytest.approx(68e3, rel=1e-3),
    )
    even = Perception(slow=((3, 3.0),))
    assert even.step_us() == pytest.approx(226e3, rel=0.01)
    assert even.but(shares=(5, 5, 5, 1)).step_us() == pytest.approx(160e3, rel=0.01)


def test_what_small_clusters_do():
    rows = {(row["cards"], number % 2): row for number, row in enumerate(small.rows())}
    assert [rows[cards, 0]["fit"] > 0 for cards in small.COUNTS] == [False, False, False, True]
    assert all(rows[cards, 1]["fit"] > 0 for cards in small.COUNTS)
    for cards in (1, 2):
        assert "recompute full" in rows[cards, 1]["layout"] and "ZeRO 3" in rows[cards, 1]["layout"]
    assert rows[2, 1]["token_rate"] > 2 * rows[1, 1]["token_rate"]
    assert rows[4, 1]["layout"].startswith("pp 4") and "recompute" not in rows[4, 1]["layout"]
    assert rows[8, 1]["token_rate"] / rows[8, 0]["token_rate"] == pytest.approx(0.95, abs=0.02)
    assert rows[8, 0]["held_bytes"] == pytest.approx(21.5e9, rel=0.01)
    recomputed = small.cases()[3].plan.but(recompute="full").memory()
    assert recomputed.peak_bytes < 0.9 * rows[8, 0]["held_bytes"]
    one = small.cases()[0]
    assert one.plan.memory().parts["gradients"] == 0
    assert one.host_bytes == pytest.approx(121e9, rel=0.01)
    by_megatron = one.plan.but(zero=0, recipe="megatron").memory()
    assert by_megatron.state_bytes == pytest.approx(40e9, rel=0.02)


def test_what_gradients_take_is_split_into_messages_and_bytes():
    for link in (10, 1):
        *split, joined = policy_parts(link).values()
        assert joined == {**split[0], "messages": 3e3}
        if link == 10:
            assert sum(joined.values()) < min(sum(each.values()) for each in split)
        rows = foreseen(link)
        rest = [
            row["predicted_us"] - sum(parts.values())
            for row, parts in zip(rows, split, strict=True)
        ]
        assert rest == pytest.approx(rest[:1] * 4)  # computing and features, by every policy
        for row, parts in zip(rows, split, strict=True):
            assert parts["messages"] == 3e3 * row["messages"]
            assert parts["bytes"] == pytest.approx(row["gradients_bytes"] / link)


def test_the_numbers_to_remember():
    assert collectives.lower_bound_bytes("all_reduce", 1024, 1.0) == pytest.approx(1.998, abs=1e-3)
    assert round(3 / 11, 2) == 0.27
