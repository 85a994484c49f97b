"""The script of LLaMA-13B at toy size: real engines shard it, and reading ahead is advised."""

import math

import pytest

from labkit.case_studies import Script, llama_run, mended

pytestmark = pytest.mark.real


@pytest.mark.again
def test_both_engines_shard_the_same_training():
    rows = llama_run.trained_by()
    assert [row["engine"] for row in rows] == ["fsdp", "fsdp, sync_each_batch", "zero3"]
    by = [row["trained_by"] for row in rows]
    assert by == ["FSDPLlamaForCausalLM", "FSDPLlamaForCausalLM", "DeepSpeedEngine"]
    # between microbatches the Trainer's FSDP keeps whole gradients, unless it is told
    assert [row["gradients"] / row["kept"] for row in rows] == [2, 1, 1]
    assert [row["gradients as"] for row in rows[:2]] == ["bfloat16", "float32"]
    assert [row["kept as"] for row in rows] == ["float32", "float32", "bfloat16"]
    assert {row["Adam as"] for row in rows} == {"float32"}
    assert rows[0]["last loss"] == pytest.approx(rows[1]["last loss"], abs=0.02)
    for row in rows:
        assert row["kept"] * 2 == row["weights"]
        assert row["last loss"] < math.log(256) - 0.2  # of 256 bytes, all as likely


def test_without_accumulation_no_whole_gradients_stay():
    told = Script(accumulation=1, read_ms=0.0, microbatch_ms=0.0, steps=4).run()[0]
    assert told["gradients"] == told["kept"] == told["weights"] / 2
    assert told["gradients as"] == "float32"


@pytest.mark.alone
def test_advice_is_to_read_ahead_and_that_helps():
    proof = mended("fsdp")
    assert proof.right, proof.advice.told()
    assert proof.predicted > 0.05 and proof.achieved > 0.0
    assert {"paced"} <= set(proof.advice.timeline.notes)


@pytest.mark.parametrize("wrong", [{"engine": "ddp"}, {"steps": 2}, {"workers": -1}])
def test_what_is_no_script_is_refused(wrong):
    with pytest.raises(ValueError):
        Script(**wrong)
