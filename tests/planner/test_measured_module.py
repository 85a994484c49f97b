"""A module of the reader's own: counted on the meta device, beside what it really does."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from labkit import model, planner
from labkit.footprint import PARTS
from labkit.measure import memory
from labkit.planner.plan.shape import Shape

SMALL = {"hidden": 64, "heads": 4, "ffn": 160, "layers": 3, "vocab": 300}


class Plain(nn.Module):
    """A user's own: an input product, equal layers in an nn.Sequential, an output product."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 48)
        self.body = nn.Sequential(
            *(nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 48)) for _ in range(5))
        )
        self.outer = nn.Linear(48, 7)

    def forward(self, rows):
        return self.outer(self.body(self.inner(rows)))


def llama(**options) -> LlamaForCausalLM:
    """transformers' LLaMA at small sizes."""
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=160,
        num_hidden_layers=3,
        vocab_size=300,
        use_cache=False,
        **options,
    )
    return LlamaForCausalLM(config)


def made(kind: str) -> tuple[nn.Module, torch.Tensor]:
    """(module, example), on the default device."""
    if kind == "course":
        return model.Transformer(4, 64, 4, max_len=48), torch.zeros(2, 48, dtype=torch.long)
    if kind == "transformers":
        return llama(), torch.zeros(2, 48, dtype=torch.long)
    return Plain(), torch.zeros(6, 20, 12)


def logits(module: nn.Module, example: torch.Tensor) -> torch.Tensor:
    """What the module gives, as a tensor."""
    found = module(example)
    return getattr(found, "logits", found)


KINDS = ("course", "transformers", "plain")


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_exact(kind):
    with torch.device("meta"):
        module, example = made(kind)
    counted = planner.measured(module, example)
    assert counted.params == sum(each.numel() for each in module.parameters())
    first = counted.outer_params(is_first=True, is_last=True)[1]
    assert counted.layers * counted.layer_params + first == counted.params


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_of_a_real_forward(kind):
    torch.manual_seed(0)
    module, example = made(kind)
    counted = planner.measured(module, example, causal=True)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        logits(module, example)
    rows = example.shape[0] * example.shape[1]
    layer = counted.layer_flops() + counted.attention_flops(counted.seq)
    forward = rows * (counted.layers * layer + counted.head_flops())
    # torch has no formula for the CPU's flash attention: it counts the products alone
    attention = rows * counted.layers * counted.attention_flops(counted.seq)
    assert counter.get_total_flops() in (
        pytest.approx(forward, rel=1e-9),
        pytest.approx(forward - attention, rel=1e-9),
    )
    assert counted.token_flops(counted.seq) == pytest.approx(3 * forward / rows)


@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_those_of_a_real_step(kind):
    torch.manual_seed(0)
    module, example = made(kind)
    counted = planner.measured(module, example, causal=True)
    rows = example.shape[0] * example.shape[1]
    wanted = rows * (counted.outer_kept_bytes + counted.layers * counted.kept_bytes(1, 4))
    with memory.watch() as watched:
        watched.mark("F")
        held = logits(module, example)
        watched.kept()
        watched.mark("loss")
    wanted += held.nbytes  # nobody has saved it yet
    found = watched.footprint()
    activations = found.num_bytes[-1][PARTS.index("activations")]
    # transformers makes a mask where it cannot read values, and repeats keys and values for it
    most = 0.05 if kind == "transformers" else 0.02
    assert wanted == pytest.approx(activations, rel=most)


def test_a_llama_of_transformers_is_the_shape_of_its_sizes():
    with torch.device("meta"):
        module = llama()
    counted = planner.measured(module, torch.zeros(1, 128, dtype=torch.long), causal=True)
    shape = Shape(**SMALL, kv_heads=2, glu=True, tied=False)
    assert counted.params == shape.params
    assert counted.layer_flops() == shape.layer_flops()
    assert counted.token_flops(128, causal=True) == shape.token_flops(128, causal=True)


def test_tied_embeddings_are_counted_once_and_lie_on_both_ends():
    with torch.device("meta"):
        module = llama(tie_word_embeddings=True)
    counted = planner.measured(module, torch.zeros(1, 32, dtype=torch.long))
    table = 300 * 64
    assert counted.tied
    assert counted.outer_params(is_first=True, is_last=False) == (0.0, table)
    assert counted.outer_params(is_first=False, is_last=True) == (0.0, table + 64)
    assert counted.outer_params(is_first=True, is_last=True) == (0.0, table + 64)


def test_a_plan_of_a_module_has_memory_and_time():
    with torch.device("meta"):
        module, example = made("course")
    counted = planner.measured(module, example, name="mine")
    plan = planner.Plan(model=counted, gpus=16, zero=3, seq=counted.seq, precision="fp32")
    assert plan.time().step_us > 0
    assert plan.memory().parts["parameters"] == pytest.approx(4 * counted.params / 16)
    assert "mine" in plan.title("en")
    fp32 = plan.but(recipe="fp32").memory().parts
    assert fp32["activations"] == pytest.approx(counted.layers * counted.kept_bytes(48, 4))
    piped = planner.Plan(model=counted, gpus=4, pp=4, seq=counted.seq, batch=8)
    assert len(piped.memory().stages) == 4
    halves = [stage["parameters"] for stage in piped.memory().stages]
    assert sum(halves) == pytest.approx(2 * counted.params)


def test_a_search_of_a_module_keeps_to_what_is_known_of_it():
    with torch.device("meta"):
        module, example = made("course")
    counted = planner.measured(module, example)
    found = planner.search(planner.Plan(model=counted, gpus=8, batch=32, seq=counted.seq))
    assert found.fitting
    assert {each.layout.tp for each in found.fitting} == {1}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tp": 2}, "not known: tp 1, not 2"),
        ({"seq": 2048, "pp": 2}, "measured at 48 rows a sequence"),
        ({"recompute": "selective", "pp": 2}, "recompute none or full"),
    ],
)
def test_what_is_not_known_of_a_module_is_refused(fields, words):
    with torch.device("meta"):
        module, example = made("course")
    counted = planner.measured(module, example)
    with pytest.raises(ValueError, match=words):
        planner.Plan(**{"model": counted, "gpus": 8, "seq": 48, **fields})


class Reads(Plain):
    """Looks at a value on its way."""

    def forward(self, rows):
        return super().forward(rows) if rows.sum().item() > 0 else rows


class Idle(Plain):
    """Never goes through its layers."""

    def forward(self, rows):
        return self.outer(self.inner(rows))


@pytest.mark.parametrize(
    ("module", "example", "words"),
    [
        (Plain(), None, "give an example"),
        ("LLaMA 7B", torch.zeros(1), "a torch.nn.Module is measured; got str"),
        (nn.Linear(4, 4), torch.zeros(1, 4), "side by side in an nn.ModuleList"),
        (Plain(), torch.zeros(2, 5), "fails on the example"),
        (Reads(), torch.zeros(2, 5, 12), "a forward that reads values"),
        (Idle(), torch.zeros(2, 5, 12), "never went through body"),
    ],
)
def test_a_module_that_cannot_be_measured_says_why(module, example, words):
    with pytest.raises(ValueError, match=words):
        planner.measured(module, example)


def test_layers_that_share_weights_are_refused():
    module = Plain()
    for layer in module.body:
        layer[0].weight = module.body[0][0].weight
    with pytest.raises(ValueError, match="share weights"):
        planner.measured(module, torch.zeros(2, 5, 12))


def test_hooks_are_taken_off_again():
    module = Plain()
    planner.measured(module, torch.zeros(2, 5, 12))
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in module.body)
    assert all(each.device.type == "cpu" for each in module.parameters())
