"""What DeepSpeed reads out of configurations, asked on real ranks."""

import pytest

import labkit as lab
from labkit.zero import config_run

pytest.importorskip("deepspeed")


def test_a_row_says_what_deepspeed_will_use_or_why_it_refuses():
    batch = {"train_batch_size": 8, "gradient_accumulation_steps": 2}
    files = {
        "right": batch | {"zero_optimization": {"stage": 2}},
        "inside": batch | {"zero_optimization": {"stage": 2, "reduce_bucket": 1}},
        "at the top": batch | {"zero_optimisation": {"stage": 2}},
    }
    rows = lab.launch(config_run.read, files, ranks=2)[0]
    assert rows == [
        {"file": "right", "stage": "2", "micro": 2, "clipping": 1.0},
        {"file": "inside", "why": "ValidationError"},
        {"file": "at the top", "stage": "0", "micro": 2, "clipping": 1.0},
    ]
