"""The planner beside published runs: rows read, constants found, predictions judged."""

import csv
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from labkit import __main__
from labkit.pipeline import schedules, simulation
from labkit.planner.models import DATA
from labkit.planner.plan import stacks
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.search import divisors, search
from labkit.planner.plan.stacks import STACKS
from labkit.planner.trust import fit, judge, rows, validate

PUBLISHED = DATA / "published"
FILES = ("megatron_sc21_table1", "megatron_sc21_table2", "korthikanti_table5")
ROW = {
    "gpu": "A100-80",
    "n_gpus": 8,
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "ffn": 11008,
    "glu": 1,
    "vocab": 32000,
    "seq": 2048,
    "mbs": 2,
    "gbs": 64,
    "zero": 3,
    "flash": 1,
}


@pytest.fixture(scope="module")
def published():
    """All rows with runs, by file."""
    return {name: rows.load(PUBLISHED / f"{name}.csv") for name in FILES}


def test_every_published_row_is_read(published):
    assert [len(kept) for kept, _ in published.values()] == [10, 12, 9]
    assert not any(refused for _, refused in published.values())


def test_a_rows_time_is_what_its_tflops_say(published):
    first = published["megatron_sc21_table1"][0][0]
    assert first.tflops(first.step_us()) == pytest.approx(137)
    again = replace(first, flops_kind="model")
    assert first.step_flops() / again.step_flops() == pytest.approx(4 / 3, rel=0.03)


def test_what_a_row_lacks_or_cant_be_is_told_and_refused(tmp_path):
    with pytest.raises(ValueError, match="got none of: gpu, n_gpus"):
        rows.row({})
    with pytest.raises(ValueError, match="tp is a number; got 'two'"):
        rows.row({**ROW, "tp": "two"})
    with pytest.raises(ValueError, match="are all GPUs of a run; got 8 x 3 on 16"):
        rows.row({**ROW, "n_gpus": 16, "tp": 8, "cp": 1, "pp": 1, "dp": 3})
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ROW, "iter_s"])
        writer.writeheader()
        writer.writerows([{**ROW, "iter_s": 4}, {**ROW, "gpu": "abacus", "iter_s": 4}])
    kept, refused = rows.load(path)
    assert len(kept) == 1
    assert "abacus" in refused[0][1]
    with pytest.raises(ValueError, match="lacks"):
        path.write_text("a,b\n1,2\n")
        rows.load(path)
    with pytest.raises(ValueError, match="CSV file"):
        rows.load(tmp_path / "none.csv")


def test_a_fit_finds_the_constants_that_made_the_rows(published):
    timed = [row for name in FILES for row in published[name][0][::2]]
    timed = [row for row in timed if row.layout.zero < 3]
    true = STACKS["megatron-a100"].but(matmul=0.6, nic=0.3, attention=0.42)
    made = [replace(row, told={"iter_s": fit.predicted_us(row, true) / 1e6}) for row in timed]
    found = fit.fit(made)
    assert len(found.moved) <= 4
    assert found.misfit < 0.01
    assert found.stack(timed[0]).matmul == pytest.approx(0.6, rel=0.02)


def test_a_fit_moves_no_other_constants_than_are_named(published):
    runs = [row for row in published[FILES[0]][0] if row.layout.zero < 3]
    named = ("matmul", "layer_us")
    found = fit.fit(runs, constants=named)
    assert found.moved[0][1] == "matmul" and {name for _, name in found.moved} <= set(named)
    with pytest.raises(ValueError, match="one constant or more"):
        fit.fit(runs, constants=())
    with pytest.raises(ValueError, match="a constant"):
        fit.fit(runs, constants=("speed",))


def test_two_rows_are_enough_to_begin_and_move_one_constant():
    slow = [{**ROW, "iter_s": 5.0}, {**ROW, "mbs": 4, "iter_s": 4.9}]
    found = fit.fit(slow)
    assert len(found.moved) == 1
    assert found.misfit < 0.05
    with pytest.raises(ValueError, match="two rows with a time or more; got 1"):
        fit.fit(slow[:1])
    plan = Plan(gpus=8, zero=3, mbs=2, batch=64, stack=next(iter(found.stacks.values())))
    assert plan.time().step_us / 1e6 == pytest.approx(5.0, rel=0.06)


@pytest.mark.parametrize("name", FILES)
def test_on_published_rows_it_is_twice_as_good_as_one_constant(published, name):
    errors = []
    naive = []
    for seed in range(10):
        found = validate.validate(published[name][0], 0.25, seed)
        errors += found.errors()
        naive += found.naive
        assert len(found.constants) <= 4
    assert judge.median(errors) <= 0.035
    assert judge.p90(errors) <= 0.10
    assert 2 * judge.median(errors) <= judge.median(naive)
    assert judge.p90(errors) < judge.p90(naive)


def test_curves_may_have_words_for_names(published):
    found = validate.validate(published["megatron_sc21_table2"][0], 0.25)
    curves = found.curves({"z3_175B": "175 B, ZeRO 3"})
    assert {"175 B, ZeRO 3", "z3_530B"} < set(curves["predicted"])
    assert "z3_175B" not in curves["measured"] | curves["fitted"]


def test_validation_prints_what_was_asked_and_never_counts_a_fitted_row(published, capsys):
    path = PUBLISHED / "megatron_sc21_table2.csv"
    line = ["plan", "--validate", str(path), "--fit", "0.25", "--seed", "3", "--json"]
    assert __main__.main(line) == 0
    told = json.loads(capsys.readouterr().out)
    wanted = {"rows", "median", "p90", "naive_median", "naive_p90", "memory_median", "memory_p90"}
    assert wanted | {"spearman", "regret", "constants"} <= set(told)
    assert sum(row["fitted"] for row in told["rows"]) == 3
    unseen = [abs(row["error"]) for row in told["rows"] if not row["fitted"]]
    assert told["median"] == pytest.approx(np.median(unseen))
    assert __main__.main(["plan", "--validate", str(path), "--markdown"]) == 0
    assert "| sc21t2_z3_530B_1120 |" in capsys.readouterr().out
    assert __main__.main(["plan", "--validate", str(path), "--fit", "1"]) == 2
    assert "leaves none" in capsys.readouterr().err


def test_memory_rows_are_predicted_and_a_constant_is_fitted():
    made = []
    for number, mbs in enumerate((1, 2, 4, 8)):
        one = rows.row({**ROW, "mbs": mbs, "iter_s": 4.0}, f"row {number}")
        stack = STACKS["fsdp-a100"].but(fixed_gb=6.0)
        held = validate.predicted_bytes(one, "mixed", stack) / validate.GIB
        made.append(replace(one, told={**one.told, "mem_gib": held}))
    found = validate.validate(made, 0.5)
    assert judge.p90(found.errors(in_memory=True)) < 1e-6
    assert any("fixed_gb" in name for name in found.constants)


def test_a_file_of_memory_alone_is_judged_by_its_memory():
    made = [rows.row({**ROW, "mbs": mbs, "mem_gib": 20 + mbs}, str(mbs)) for mbs in (1, 2, 4, 8)]
    made = [replace(one, told={"mem_gib": one.told["mem_gib"]}) for one in made]
    found = validate.validate(made, 0.5).to_json()
    assert found["median"] is None and found["memory_median"] is not None
    assert {row["quantity"] for row in found["rows"]} == {"mem_gib"}
    assert any(value == "fsdp-a100" for value in found["constants"].values())


def test_files_that_cannot_be_judged_say_why(tmp_path, capsys):
    text = (PUBLISHED / "megatron_sc21_table1.csv").read_text()
    header, *lines = text.splitlines()
    told = {
        "under its header": [header],
        "got 'XPU-9'": [header, lines[0].replace("A100-80", "XPU-9")],
        "tp is a finite number": [header, lines[0].replace(",2048,1,1,", ",2048,inf,1,")],
    }
    for why, kept in told.items():
        path = tmp_path / "rows.csv"
        path.write_text("\n".join(kept))
        assert __main__.main(["plan", "--validate", str(path)]) == 2
        assert why in capsys.readouterr().err
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())  # as spreadsheets write it
    assert rows.load(path)[0][0].id == "sc21t1_1.7B"
    assert __main__.main(["plan", "--validate", str(path), "--fit", "0.3", "--seed", "-1"]) == 2
    assert "seed is a whole number" in capsys.readouterr().err


def test_a_reader_that_has_read_enough_is_no_error():
    path = PUBLISHED / "megatron_sc21_table1.csv"
    line = f"{sys.executable} -m labkit plan --validate {path} | head -n 1"
    ended = subprocess.run(
        ["bash", "-c", line + "; exit ${PIPESTATUS[0]}"], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.startswith("sc21t1_1.7B")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_is_gathered_across_nodes_is_warned_of_by_what_left_out_runs_took(published):
    ratios = []
    for one in published["megatron_sc21_table2"][0]:
        if one.layout.zero == 3:
            usual = stacks.nearest(one.cluster.gpu.name, 3)
            ratios.append(one.step_us() / fit.predicted_us(one, usual))
    assert max(ratios) == pytest.approx(stacks.LEFT_OUT_TIMES, abs=0.05)
    told = f"up to {stacks.LEFT_OUT_TIMES:g} times"
    across = Plan(gpus=64, zero=3)
    assert any(told in each for each in across.warnings())
    fitted = replace(across, stack=across.used.but(nic=0.2))
    for quiet in (fitted, replace(across, gpus=8), replace(across, zero=1)):
        assert not any(told in each for each in quiet.warnings())


def test_an_order_is_judged_by_spearman_and_regret():
    assert judge.spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert judge.spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert judge.spearman([1, 1, 2], [5, 5, 9]) == pytest.approx(1)
    assert judge.spearman([1, 2, 3], [7, 7, 7]) == 0  # who calls all alike has not ordered them
    assert judge.spearman([1, 1], [2, 2]) == 1
    many = [rows.row({**ROW, "mbs": mbs, "iter_s": 4 + mbs}, str(mbs)) for mbs in (1, 2, 4, 8)]
    assert judge.order(many, [1, 2, 3, 4]) == (None, None)
    many.append(rows.row({**ROW, "mbs": 16, "iter_s": 20}, "16"))
    assert judge.order(many, [5, 4, 3, 2, 1]) == (pytest.approx(1), 0.0)
    spearman, regret = judge.order(many, [1, 2, 3, 4, 5])
    assert spearman == pytest.approx(-1)
    assert regret == pytest.approx(20 / 5 - 1)
    speeds = [row.read("tok_s_gpu", row.step_us()) for row in many]
    spearman, regret = judge.order(many, [1, 1, 1, 1, 1])
    assert spearman == 0
    assert regret == pytest.approx(max(speeds) / np.mean(speeds) - 1)


ZERO_BUBBLE = {"1F1B": "1f1b", "ZB-H1": "zb_h1"}


def test_zero_bubbles_table_five_is_simulated_to_the_fourth_digit():
    def table(name: str) -> dict:
        lines = csv.DictReader((PUBLISHED / name).read_text().splitlines())
        return {(row["model"], row["m"]): row for row in lines}

    rates = table("zero_bubble_rates.csv")
    for key, row in table("zero_bubble_times.csv").items():
        names = ("forward_ms", "input_ms", "weight_ms", "message_ms")
        forward, inputs, weight, message = (float(row[name]) for name in names)
        cost = simulation.Cost(
            forward_us=forward,
            backward_us=inputs + weight,
            input_us=inputs,
            weight_us=weight,
            message_us=message,
        )
        counts = (int(row["p"]), int(row["m"]))
        ideal = counts[1] * (forward + inputs + weight)
        for column, schedule in ZERO_BUBBLE.items():
            line = simulation.simulate(schedules.SCHEDULES[schedule](*counts), cost)
            rate = 1 - ideal / float(line.end_us.max())
            assert rate == pytest.approx(float(rates[key][column]), abs=1e-4), (key, column)


# --- the search, and the command ---


def test_a_search_finds_the_best_of_all_that_divide():
    plan = Plan(gpus=8, batch=64)
    found = search(plan)
    assert found.best.time().step_us == pytest.approx(found.fitting[0].step_us)
    assert found.best.fits
    assert all(each.fits for each in found.fitting)
    assert not any(each.fits for each in found.too_large)
    for zero in (0, 1, 3):
        for tp in divisors(8):
            one = plan.but(tp=tp, zero=zero, sp=tp > 1)
            if one.fits:
                assert found.regret(one) >= -1e-9
    frontier = found.frontier()
    assert [each.peak_bytes for each in frontier] == sorted(
        (each.peak_bytes for each in frontier), reverse=True
    )


def test_a_search_says_whose_constants_each_layout_has_and_takes_the_one_that_is_named():
    plan = Plan(gpus=64, batch=512)
    found = search(plan)
    for each in found.fitting:
        assert each.stack == ("fsdp-a100" if each.layout.zero == 3 else "megatron-a100")
    best = found.by_stack()
    assert set(best) == {"fsdp-a100", "megatron-a100"} and found.best == next(iter(best.values()))
    for name, each in best.items():
        assert each.used.name == name
        fastest = min(one.step_us for one in found.fitting if one.stack == name)
        assert each.time().step_us == pytest.approx(fastest)
    one = search(plan.but(stack="fsdp-a100"))
    assert {each.stack for each in (*one.fitting, *one.too_large)} == {"fsdp-a100"}
    assert {row["stack"] for row in one.rows()} == set(one.by_stack()) == {"fsdp-a100"}


def test_a_model_too_large_for_a_cluster_says_by_how_much():
    found = search(Plan(model="GPT-3 175B", gpus=8, batch=8))
    assert not found.fitting
    with pytest.raises(
        ValueError, match=r"no layout of GPT-3 175B fits. The nearest lacks .* GB a GPU"
    ):
        found.plans()
    assert found.rows()[0]["fits"].startswith("+")


def test_the_command_tells_a_plan_and_refuses_nonsense(capsys):
    line = ["plan", "llama-7b", "--gpus", "8", "--zero", "3", "--batch", "64"]
    assert __main__.main([*line, "--tokens", "1e12", "--price", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cost"] == pytest.approx(told["days"] * 24 * 8 * 2)
    assert sum(told["time_us"].values()) == pytest.approx(1e6 * told["step_s"])
    assert __main__.main(line) == 0
    assert "LLaMA 7B, 8 x A100 80 GB, dp 8, ZeRO 3" in capsys.readouterr().out
    assert __main__.main(["plan", "llama-7b", "--gpus", "8", "--batch", "8"]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert __main__.main([*line, "--search"]) == 0
    assert "layouts fit" in capsys.readouterr().out
    assert __main__.main(["plan", "gpt-9"]) == 2
    assert __main__.main(["plan"]) == 2
    assert __main__.main(["plan", "llama-7b", "--tp", "3"]) == 2


def test_a_fitted_stack_says_that_it_was_fitted_and_not_how_far_off_the_shipped_one_is():
    """Its constants have another source; no error was measured with them."""
    runs, _ = rows.load(PUBLISHED / "megatron_sc21_table2.csv")
    sharded = [run for run in runs if "z3" in run.id]
    shipped = STACKS["fsdp-a100"]
    fitted = fit.fit(sharded[:2], begun=[shipped]).stack(sharded[0])
    plan = Plan(model="LLaMA 7B", gpus=64, zero=3, stack=fitted)
    assert plan.row()["stack"] == "fsdp-a100 fitted on 2 runs"
    assert "nobody knows" in plan.trust() and "we allow" not in plan.trust()
    shipped = plan.but(stack="fsdp-a100").trust()
    assert "we allow for an error of 20%; other runs may be further off" in shipped
    assert search(plan).best.used.called("zh") == "fsdp-a100，由 2 次运行拟合"
