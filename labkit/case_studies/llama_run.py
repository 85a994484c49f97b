"""The script of LLaMA-13B at a size that runs here: a real Llama of transformers on the story, by
the Hugging Face Trainer with FSDP or DeepSpeed's ZeRO 3; recorded, advised, and mended.

    case_studies.mended("fsdp")     # runs it, asks lab.advise, follows it, runs it again

How long it takes to read a sample and to compute a microbatch is stated (paced); model, engine,
messages and the workers that read ahead are real.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from labkit.case_studies import kept_run
from labkit.devices import rung
from labkit.profiling.advice import advise
from labkit.profiling.proof import Proof
from labkit.profiling.recording.window import window
from labkit.timeline import COMPUTE, Timeline
from labkit.units import check_real, check_whole, check_word
from labkit.words import say

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, Trainer, TrainingArguments

    from labkit.launching.job import Job
    from labkit.launching.run import Run

ENGINES = ("fsdp", "zero3")
TIMEOUT_S = 120.0
IMPORTED = (
    "deepspeed",
    "transformers.trainer",
    "transformers.models.llama.modeling_llama",
    "transformers.integrations.deepspeed",
    "setuptools",
)
"""what a rank of the Trainer imports, and the zygote does before it: five seconds of a core"""
LENGTH = 32
"""tokens of a sample"""
SIZES = {"hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2}
"""of the toy"""


@dataclass(frozen=True, kw_only=True)
class Script:
    """The script's Trainer: what may be turned. Batch and accumulation are small beside the
    source's 2 x 16."""

    engine: str = "fsdp"
    """"fsdp" (FSDP2) or "zero3" (DeepSpeed)"""
    ranks: int = 2
    """real ones"""
    batch: int = 2
    """samples of a microbatch, ``per_device_train_batch_size``"""
    accumulation: int = 2
    """microbatches of a step, ``gradient_accumulation_steps``"""
    sync_each_batch: bool = False
    """whether FSDP's ranks add up gradients after every microbatch, and keep a shard of them. By
    itself the Trainer does so after a step's last one: until then each rank keeps all"""
    workers: int = 0
    """``dataloader_num_workers``: 0, as in the script, reads each batch when it is due"""
    read_ms: float = 15.0
    """to read and tokenise a sample: stated"""
    microbatch_ms: float = 60.0
    """a microbatch's forward and backward, messages included: stated"""
    steps: int = 6
    """``max_steps``; the first two are not looked at"""

    def __post_init__(self) -> None:
        check_word(self.engine, ENGINES, "an engine")
        check_whole(1, 64, ranks=self.ranks, batch=self.batch, accumulation=self.accumulation)
        check_whole(0, 16, workers=self.workers)
        check_whole(3, 1000, steps=self.steps)
        check_real(0.0, 1e4, read_ms=self.read_ms, microbatch_ms=self.microbatch_ms)

    def start(self) -> "Job":
        """The script on real ranks, in the background."""
        from labkit.launching import launcher
        from labkit.launching.fork import zygote_client

        zygote_client.expect(*IMPORTED)
        return launcher.start(
            train, self, ranks=self.ranks, devices=rung.TRAINER, timeout_s=TIMEOUT_S
        )

    def run(self) -> "Run":
        """The script on real ranks. Each returns what ``train`` says."""
        return self.start().wait()

    def but(self, **changes: Any) -> "Script":
        """The same with some fields changed."""
        return replace(self, **changes)


def steps(run: "Run") -> Timeline:
    """The steps of a run of the script, its first two left out."""
    whole = run.timeline()
    part = window(whole).timeline
    return replace(part.select(part.lane != "mark"), notes=whole.notes)


def mended(engine: str = "fsdp") -> Proof:
    """Runs the script as it is, asks for advice, follows the part of it that the script's own
    arguments can (read ahead: ``dataloader_num_workers=1``), and runs it again.

    Reading and computing are paced, the reading ahead is real. Raises ValueError for another
    engine.
    """
    script = Script(engine=engine)
    before = script.run()
    after = script.but(workers=1).run()
    return Proof(kind="input", advice=advise(steps(before)), cured=steps(after))


def trained_by() -> list[dict[str, object]]:
    """A row for each engine, and one for FSDP that is told to add up gradients at each microbatch:
    the class that has trained, what a rank keeps of the weights, of how many weights it keeps
    gradients between two microbatches, the types of both and of Adam's moments, and the last
    loss."""
    quick = Script(read_ms=0.0, microbatch_ms=0.0, steps=4)
    scripts = {engine: quick.but(engine=engine) for engine in ENGINES}
    scripts["fsdp, sync_each_batch"] = quick.but(sync_each_batch=True)
    jobs = {name: script.start() for name, script in scripts.items()}  # at once: nothing is timed
    rows = []
    for name, job in sorted(jobs.items()):
        told = job.wait()[0]
        heads = {
            "kept as": say("kept as"),
            "gradients as": say("gradients as"),
            "Adam as": say("Adam as"),
        }
        last = {"last loss": told.pop("losses")[-1]}
        row = {heads.get(head, head): value for head, value in told.items()}
        rows.append({"engine": name, **row, **last})
    return rows


def kept(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Of ``trained_by``'s rows only what a rank keeps, and of which engine."""
    others = ("trained_by", "last loss")
    found = []
    for row in rows:
        found.append({head: row[head] for head in row if head not in others})
    return found


# --- in the ranks ---


def train(script: Script) -> dict[str, Any]:
    """A rank's part: trains, recorded.

    Returns
    -------
    dict: trained_by (the class that wraps the model), weights (of the whole model), kept (of them
    on this rank, between steps), kept as (their type), gradients (of how many weights it keeps any
    between the first two microbatches), gradients as (type), Adam as (type of the moments), losses
    (of each step).
    """
    import torch

    from labkit.launching import rank
    from labkit.measure import trace

    torch.manual_seed(0)
    if script.read_ms or script.microbatch_ms:
        rank.current().note("paced")
    net = small_llama()
    num_weights = sum(weight.numel() for weight in net.parameters())
    trainer = _trainer(script, net)
    gradients: list[tuple[int, torch.dtype]] = []
    trainer.training_step = _counted(trainer, gradients)
    with trace.record(operators=False):
        trainer.train()
    history = trainer.state.log_history
    return {
        "trained_by": type(trainer.model_wrapped).__name__,
        "weights": num_weights,
        "kept": sum(weight.numel() for weight in kept_run.weights(trainer)),
        "kept as": kept_run.named(kept_run.weights(trainer)[0].dtype),
        "gradients": sum(count for count, _ in gradients),
        "gradients as": kept_run.named(gradients[0][1]),
        "Adam as": kept_run.named(kept_run.moments(trainer)[0].dtype),
        "losses": [told["loss"] for told in history if "loss" in told],
    }


def small_llama(vocabulary: int = 256) -> "LlamaForCausalLM":
    """A real Llama of two layers and some 40,000 weights, or as many more as the vocabulary
    needs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    check_whole(2, 100_000, vocabulary=vocabulary)
    config = LlamaConfig(
        vocab_size=vocabulary,
        num_attention_heads=4,
        max_position_embeddings=256,
        use_cache=False,
        **SIZES,
    )
    return LlamaForCausalLM(config)


def _trainer(script: Script, net: "LlamaForCausalLM") -> "Trainer":
    """The source's Trainer at this size."""
    from transformers import Trainer

    arguments = _arguments(script)
    if script.engine == "fsdp":
        _as_if_launched()
    trainer = Trainer(net, arguments, train_dataset=_passages(script))
    trainer.training_step = _stated(trainer.training_step, 1e3 * script.microbatch_ms)
    return trainer


def _stated(microbatch: Callable, stated_us: float) -> Callable:
    """The Trainer's own forward and backward, lasting as long as stated."""
    import time

    from labkit.measure import trace
    from labkit.measure.pace import Pace

    pace = Pace()

    def stated(*args: Any, **options: Any) -> Any:
        start_ns = time.time_ns()
        with pace.taking("", stated_us):
            made = microbatch(*args, **options)
        trace.span("compute", "microbatch", start_ns, time.time_ns(), lane=COMPUTE)
        return made

    return stated


def _counted(trainer: "Trainer", found: list[tuple[int, Any]]) -> Callable:
    """The Trainer's own forward and backward; the first one adds how many numbers of which type
    its gradients are."""
    microbatch = trainer.training_step

    def counted(*args: Any, **options: Any) -> Any:
        made = microbatch(*args, **options)
        if not found:
            found.extend((each.numel(), each.dtype) for each in kept_run.gradients(trainer))
        return made

    return counted


def _arguments(script: Script) -> "TrainingArguments":
    """The source's arguments, but for what is said in ``Script`` and what this machine lacks."""
    import torch
    from transformers import TrainingArguments

    from labkit.launching import rank

    engine: dict[str, Any] = {"deepspeed": _deepspeed_file()}
    if script.engine == "fsdp":
        engine = {
            "fsdp": True,
            "accelerator_config": {
                "gradient_accumulation_kwargs": {"sync_each_batch": script.sync_each_batch}
            },
            "fsdp_config": {
                "version": 2,
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
                "cpu_ram_efficient_loading": False,
            },
        }
    return TrainingArguments(
        output_dir=str(rank.current().folder / "trainer"),
        per_device_train_batch_size=script.batch,
        gradient_accumulation_steps=script.accumulation,
        max_steps=script.steps,
        learning_rate=0.01,
        bf16=True,
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=script.workers,
        dataloader_pin_memory=False,
        use_cpu=not torch.cuda.is_available(),
        **engine,
    )


def _deepspeed_file() -> dict[str, Any]:
    """ZeRO 3; what the Trainer knows is left to it."""
    auto = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    file: dict[str, Any] = dict.fromkeys(auto, "auto")
    return file | {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}


def _as_if_launched() -> None:
    """Without GPUs Accelerate 1.15 takes FSDP for DDP and says nothing: it is told what
    ``accelerate launch`` tells it where there are some."""
    import torch
    from accelerate import DistributedType, PartialState

    if not torch.cuda.is_available():
        PartialState().distributed_type = DistributedType.MULTI_GPU


def _passages(script: Script) -> Any:
    """Passages of the story, each as slow to read as stated."""
    import torch

    from labkit import model

    tokens = model.story_tokens(64, LENGTH)[0].cpu().numpy()

    class Passages(torch.utils.data.Dataset):
        """numpy alone, since a worker may not compute with torch."""

        def __len__(self) -> int:
            return len(tokens)

        def __getitem__(self, number: int) -> dict:
            if script.read_ms:
                _slow_read(script.read_ms / 1e3)
            return {"input_ids": tokens[number], "labels": tokens[number]}

    return Passages()


def _slow_read(seconds: float) -> None:
    """Sleeps like a rank that waits for its disk, and is recorded as one that loads data."""
    import time

    from labkit.measure import trace

    start_ns = time.time_ns()
    time.sleep(seconds)
    trace.span("input", "batch", start_ns, time.time_ns(), lane=COMPUTE)
