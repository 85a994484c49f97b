"""A small OPT of transformers and passages of the story, for a Trainer of theirs."""

from typing import TYPE_CHECKING

from labkit import model

if TYPE_CHECKING:
    from transformers import OPTForCausalLM


def net_and_data() -> "tuple[OPTForCausalLM, list[dict]]":
    """A model of two layers, and 48 passages of 32 bytes whose labels they are themselves."""
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {"hidden_size": 64, "ffn_dim": 256, "num_attention_heads": 4}
    net = OPTForCausalLM(OPTConfig(vocab_size=256, num_hidden_layers=2, **sizes))
    return net, [{"input_ids": row, "labels": row} for row in model.story_tokens(48, 32)[0]]
