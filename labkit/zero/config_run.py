"""What DeepSpeed reads out of configurations: the ranks' side of chapter 06's file."""

from typing import Any


def read(files: dict[str, dict]) -> list[dict[str, Any]]:
    """A row per configuration, on a rank: the stage (as a word), the microbatch and the largest
    norm of the gradients that DeepSpeed will use; of one that it refuses the kind of exception,
    ``why``."""
    import deepspeed

    deepspeed.init_distributed()  # DeepSpeedConfig asks how many ranks there are
    return [{"file": name, **_reading(content)} for name, content in files.items()]


def _reading(content: dict) -> dict[str, Any]:
    """What DeepSpeed understands of one configuration, or why it doesn't."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        found = DeepSpeedConfig(content)
    except Exception as error:  # whatever it is: the row says its kind
        return {"why": type(error).__name__}
    return {
        "stage": str(int(found.zero_optimization_stage)),
        "micro": found.train_micro_batch_size_per_gpu,
        "clipping": found.gradient_clipping,
    }
