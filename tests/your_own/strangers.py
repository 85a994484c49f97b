"""Modules that nobody here wrote, from torch and transformers, at small sizes."""

from typing import Any

import torch
import transformers
from torch import nn

SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}


def tokens(vocab: int = 500, length: int = 32) -> torch.Tensor:
    """Four rows."""
    return torch.randint(vocab, (4, length))


def gpt2() -> tuple[nn.Module, Any]:
    """Its embedding and its output layer are one table."""
    config = transformers.GPT2Config(
        n_layer=4, n_embd=64, n_head=4, vocab_size=500, n_positions=32, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config).eval(), {"input_ids": tokens()}


def bert() -> tuple[nn.Module, Any]:
    """Tied as well, and its mask, a view, goes from stage to stage."""
    config = transformers.BertConfig(intermediate_size=128, vocab_size=500, **SMALL)
    return transformers.BertForMaskedLM(config).eval(), {"input_ids": tokens()}


def t5() -> tuple[nn.Module, Any]:
    """An encoder and a decoder, one table for both and the output; what comes back is a dict."""
    config = transformers.T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=4, num_heads=4, vocab_size=500, use_cache=False
    )
    batch = {"input_ids": tokens(), "decoder_input_ids": tokens(length=24)}
    return transformers.T5ForConditionalGeneration(config).eval(), batch


def vit() -> tuple[nn.Module, Any]:
    """Images."""
    config = transformers.ViTConfig(intermediate_size=128, image_size=32, patch_size=8, **SMALL)
    return transformers.ViTForImageClassification(config).eval(), torch.randn(4, 3, 32, 32)


def mamba() -> tuple[nn.Module, Any]:
    """No attention, but a scan, step by step."""
    config = transformers.MambaConfig(
        hidden_size=64, num_hidden_layers=4, vocab_size=500, use_cache=False
    )
    return transformers.MambaForCausalLM(config).eval(), {"input_ids": tokens(length=16)}


def transformer() -> tuple[nn.Module, Any]:
    """torch's own, with two inputs."""
    net = nn.Transformer(64, 4, 3, 4, 128, dropout=0.0, batch_first=True)
    return net, (torch.randn(4, 32, 64), torch.randn(4, 24, 64))


def resnet() -> tuple[nn.Module, Any]:
    """Its stages are of different widths: hardly any layers are alike."""
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[2, 2, 2, 2]
    )
    return transformers.ResNetForImageClassification(config), torch.randn(4, 3, 32, 32)


def lstm() -> tuple[nn.Module, Any]:
    """Its layers are no submodules."""
    return nn.LSTM(32, 32, 3, batch_first=True), torch.randn(4, 10, 32)


def whisper(use_cache: bool = True) -> tuple[nn.Module, Any]:
    """Its forward gives a cache back, unless told not to: an object that torch can't trace."""
    config = transformers.WhisperConfig(
        d_model=64,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        vocab_size=500,
        max_source_positions=50,
        max_target_positions=64,
        num_mel_bins=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=use_cache,
    )
    batch = {"input_features": torch.randn(4, 8, 100), "decoder_input_ids": tokens(length=20)}
    return transformers.WhisperForConditionalGeneration(config).eval(), batch
