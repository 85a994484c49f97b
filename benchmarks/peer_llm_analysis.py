"""What llm-analysis 0.2.2 says of rows; run by ``planner_peers.py`` under a Python that has it.

Stdin: a JSON list of mappings with the fields of ``planner_peers.question``. Stdout: the list of
its answers in seconds, None where it raises. This file imports nothing of labkit.
"""

import contextlib
import json
import sys

from llm_analysis import analysis
from llm_analysis.config import ModelConfig, ParallelismConfig, get_gpu_config_by_name

GPUS = {
    "A100 80 GB": "a100-sxm-80gb",
    "A100 40 GB": "a100-sxm-40gb",
    "H100 80 GB": "h100-sxm-80gb",
    "V100 32 GB": "v100-sxm-32gb",
}
"""labkit's name -> its own."""
RECOMPUTE = {
    "none": analysis.ActivationRecomputation.NONE,
    "selective": analysis.ActivationRecomputation.SELECTIVE,
    "full": analysis.ActivationRecomputation.FULL,
}


def step_s(told: dict) -> float | None:
    """A step in seconds by its own ``training``, at the FLOPs efficiency it is told."""
    model = ModelConfig(
        name="row",
        num_layers=told["layers"],
        n_head=told["heads"],
        hidden_dim=told["hidden"],
        vocab_size=told["vocab"],
        max_seq_len=told["seq"],
        num_key_value_heads=told["kv_heads"],
    )
    parallelism = ParallelismConfig(
        tp_size=told["tp"],
        pp_size=told["pp"],
        dp_size=told["dp"],
        sp_size=told["tp"] if told["sp"] else 1,
    )
    asked = analysis.LLMAnalysis(
        model,
        get_gpu_config_by_name(GPUS[told["gpu"]]),
        parallelism_config=parallelism,
        flops_efficiency=told["efficiency"],
    )
    answer = asked.training(
        batch_size_per_gpu=told["mbs"],
        global_batch_size=told["gbs"],
        seq_len=told["seq"],
        activation_recomputation=RECOMPUTE[told["recompute"]],
        ds_zero=analysis.DSZeRO(told["zero"]),
        flash_attn=told["flash"],
    )
    return answer["latency_per_iter"]


def main() -> None:
    """Answers on stdout; what it logs goes to stderr."""
    answers = []
    analysis.logger.setLevel("CRITICAL")
    for told in json.load(sys.stdin):
        with contextlib.redirect_stdout(sys.stderr):
            try:
                answers.append(step_s(told))
            except (AssertionError, KeyError, ValueError, ZeroDivisionError) as error:
                print(f"{told['id']}: {error!r}", file=sys.stderr)
                answers.append(None)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
