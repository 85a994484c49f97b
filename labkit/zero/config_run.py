"""What DeepSpeed reads out of configurations, and what a step under them sends and holds: the
ranks' side of chapter 06's engines."""

import contextlib
import gc
from collections.abc import Callable
from typing import Any

from labkit.sharding.run import STAGE3_BUFFERS
from labkit.zero import ring_bytes

KEEP_NOTHING = dict.fromkeys(STAGE3_BUFFERS, 0)
"""Stage 3's options for which no weight stays whole after its layer, and none is gathered ahead:
for counting only, since it turns off prefetch."""


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


def second_steps(story: Callable, configs: dict[str, dict]) -> dict[str, dict[str, Any]]:
    """What DeepSpeed's second step does on this rank, by what is counted and then by configuration.

    "handed": models by collective, see ``ring_bytes.in_models``; "sends": what a ring would send
    for them, in multiples of an all-reduce of all gradients; "held": bytes of all live storages per
    parameter, after that of the step's backwards that leaves the most, without DeepSpeed's buckets,
    whose size does not depend on the model; under accumulation of stages 1 and 2 alone, because
    watching takes time. ``story()`` makes the model, tokens and targets.
    """
    import deepspeed  # noqa: F401  so that the collections below don't look at what it brings

    found: dict[str, dict[str, Any]] = {"handed": {}, "sends": {}, "held": {}}
    gc.collect()
    gc.freeze()
    try:
        for name, config in configs.items():
            for what, counted in _second_step(story, config).items():
                found[what][name] = counted
    finally:
        gc.unfreeze()
    return found


def _second_step(story: Callable, config: dict) -> dict[str, Any]:
    """One configuration's: see ``second_steps``."""
    import deepspeed
    import torch.distributed as dist

    from labkit import model
    from labkit.measure import memory, traffic

    once = config.get("gradient_accumulation_steps", 1) == 1
    watching = once or config["zero_optimization"]["stage"] in (1, 2)
    held = 0
    with memory.watch() if watching else contextlib.nullcontext() as watched:
        net, tokens, targets = story()
        num_params = sum(each.numel() for each in net.parameters())
        model_bytes = sum(each.nbytes for each in net.parameters())
        engine, *_ = deepspeed.initialize(model=net, config=config)
        for step in range(2):
            with traffic.count() as sent:
                for _ in range(engine.gradient_accumulation_steps()):
                    engine.backward(model.loss(engine(tokens), targets))
                    if step == 1 and watched:
                        dist.barrier()  # or gloo's thread may still hold the last message
                        gc.collect()
                        held = max(held, watched.live_bytes - _bucket_bytes(engine))
                    engine.step()
    handed = {call: num for call, num in sent.payload_bytes.items() if call != "barrier"}
    ranks = dist.get_world_size()
    found = {
        "handed": ring_bytes.in_models(handed, model_bytes, ranks),
        "sends": ring_bytes.on_a_ring(handed, ranks) / (2 * model_bytes),
    }
    return {**found, "held": held / num_params} if watching else found


def _bucket_bytes(engine: Any) -> int:
    """The bytes of an engine's buckets, each storage once."""
    from labkit.sharding import engines

    storages = (
        piece.held.untyped_storage() for piece in engines.pieces(engine) if piece.kind == "buffer"
    )
    return sum({each._cdata: each.nbytes() for each in storages}.values())
