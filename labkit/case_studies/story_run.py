"""A story model at toy size: a tokenizer trained here, a small Llama by DeepSpeed's ZeRO 3 on real
ranks, and what it then tells. It has learned a page by heart and tells that page: nothing else can
be expected of so few weights and words.

    told = case_studies.Story().run()[0]
    told["losses"], told["text"]
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.devices import rung
from labkit.units import check_real, check_whole

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

    from labkit.launching.job import Job
    from labkit.launching.run import Run

TIMEOUT_S = 120.0
BATCH = 8
"""passages of a rank and step"""
LENGTH = 32
"""tokens of a passage"""
TOLD = 28
"""tokens that are told"""
IMPORTED = ("deepspeed", "transformers.models.llama.modeling_llama")


@dataclass(frozen=True, kw_only=True)
class Story:
    """A training of the story model.

    ``run()[r]`` is a dict: losses (of every tenth step and the last), text (what it tells after
    ``begin``, greedily), right (the share of the told tokens that the page has there), weights (of
    the model) and kept (of them, on this rank between steps). Raises ValueError for what can't be.
    """

    ranks: int = 2
    """real ones"""
    steps: int = 45
    """updates"""
    vocabulary: int = 400
    """tokens of the tokenizer, the 256 bytes among them"""
    page: int = 500
    """characters of the story that it learns, from the beginning"""
    begin: str = "Old Tom had"
    """how the told text begins; it stands in the page"""
    rate: float = 0.005
    """of AdamW"""

    def __post_init__(self) -> None:
        check_whole(1, 64, ranks=self.ranks)
        check_whole(1, 10_000, steps=self.steps)
        check_whole(256, 10_000, vocabulary=self.vocabulary)
        check_whole(500, 20_000, page=self.page)
        check_real(0.0, 1.0, rate=self.rate)
        if not isinstance(self.begin, str) or self.begin not in text(self.page):
            raise ValueError(
                f"what is told begins as something in the page of {self.page} characters does; got "
                f"{self.begin!r:.60}. 'Old Tom had' does"
            )

    def start(self) -> "Job":
        """The training on real ranks, in the background."""
        from labkit.launching import launcher
        from labkit.launching.fork import zygote_client

        zygote_client.expect(*IMPORTED)
        trained = tokenizer(self.vocabulary)
        about = trained.encode(text(self.page)).ids, trained.encode(self.begin).ids
        return launcher.start(
            train,
            self,
            *about,
            trained.to_str(),
            ranks=self.ranks,
            devices=rung.DEEPSPEED,
            timeout_s=TIMEOUT_S,
        )

    def run(self) -> "Run":
        """The training on real ranks."""
        return self.start().wait()


def text(characters: int) -> str:
    """The beginning of the story."""
    from labkit import model

    check_whole(1, 10**6, characters=characters)
    return model.STORY.read_text(encoding="utf-8")[:characters]


def tokenizer(vocabulary: int = 400) -> "Tokenizer":
    """A byte-level BPE tokenizer (Sennrich et al. 2016; Radford et al. 2019) of the package
    tokenizers, trained on the whole story. Raises ValueError for fewer tokens than bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from labkit import model

    check_whole(256, 10_000, vocabulary=vocabulary)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([model.STORY.read_text(encoding="utf-8")], trainer)
    return made


# --- in the ranks ---


def train(story: Story, page: list[int], begin: list[int], written: str) -> dict[str, Any]:
    """A rank's part: what ``Story`` says that its run returns."""
    import deepspeed
    import torch
    from tokenizers import Tokenizer

    torch.manual_seed(0)
    net = _net(story.vocabulary)
    num_weights = sum(weight.numel() for weight in net.parameters())
    engine = deepspeed.initialize(model=net, config=_file(story))[0]
    losses = _learned(story, engine, torch.tensor(page))
    told = _told(engine, begin)
    found = [at for at in range(len(page)) if page[at : at + len(begin)] == begin]
    due = page[found[0] + len(begin) :] if found else []
    said = told[len(begin) :]
    return {
        "losses": losses,
        "text": Tokenizer.from_str(written).decode(told),
        "right": sum(map(int.__eq__, said, due)) / len(said),
        "weights": num_weights,
        "kept": sum(weight.ds_tensor.numel() for weight in engine.module.parameters()),
    }


def _net(vocabulary: int) -> "torch.nn.Module":
    """A real Llama of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2}
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            num_attention_heads=4,
            max_position_embeddings=256,
            use_cache=False,
            **sizes,
        )
    )


def _file(story: Story) -> dict[str, Any]:
    """DeepSpeed's configuration: stage 3, nothing kept whole."""
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": story.rate}},
    }


def _learned(story: Story, engine: Any, page: "torch.Tensor") -> list[float]:
    """Trains on random passages of the page, each rank on its own; some losses."""
    import numpy as np
    import torch
    import torch.distributed as dist

    draw = np.random.default_rng(1 + dist.get_rank())
    losses = []
    for step in range(story.steps):
        starts = draw.integers(0, len(page) - LENGTH, BATCH)
        tokens = torch.stack([page[start : start + LENGTH] for start in starts])
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        if step % 10 == 0 or step == story.steps - 1:
            losses.append(loss.item())
    return losses


def _told(engine: Any, begin: list[int]) -> list[int]:
    """The likeliest token again and again. All ranks go along: each has a part of every weight."""
    import torch

    told = list(begin)
    with torch.no_grad():
        while len(told) < len(begin) + TOLD:
            seen = torch.tensor([told[-LENGTH:]])
            told.append(engine(input_ids=seen).logits[0, -1].argmax().item())
    return told
