"""The same layer by megatron-core: its ``ColumnParallelLinear``, ``RowParallelLinear``, embedding
and cross-entropy. They run on a CPU as well; there megatron-core asks for CUDA's current device
once, and is told this rank's."""

import contextlib
import warnings
from collections.abc import Iterator
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.tensor_parallel import cut
from labkit.tensor_parallel.by_hand_run import piece_of
from labkit.tensor_parallel.layer import Layer
from labkit.tensor_parallel.whole_run import WholeBlock


class MegatronBlock(nn.Module):
    """A rank's part of ``WholeBlock``. megatron-core has tokens first: (T, B, D)."""

    def __init__(self, step: Layer, whole: WholeBlock, rank: int) -> None:
        super().__init__()
        from megatron.core import ModelParallelConfig, tensor_parallel

        sp = step.sequence_parallel
        shape = step.shape()
        told = {
            "config": ModelParallelConfig(
                tensor_model_parallel_size=step.ranks,
                sequence_parallel=sp,
                use_cpu_initialization=True,
                params_dtype=torch.float32,
                gradient_accumulation_fusion=False,
            ),
            "init_method": torch.nn.init.zeros_,
        }
        opens = {"gather_output": False, "bias": True, **told}
        closes = {"input_is_parallel": True, "bias": True, "skip_bias_add": False, **told}
        self.heads = cut.heads(shape.heads, shape.num_kv_heads, step.ranks, rank)
        self.head_dim = shape.width
        self.norm1 = whole.norm1
        self.norm2 = whole.norm2
        column = tensor_parallel.ColumnParallelLinear
        row = tensor_parallel.RowParallelLinear
        self.qkv = column(step.hidden, whole.qkv.out_features, **opens)
        self.out = row(step.hidden, step.hidden, **closes)
        self.up = column(step.hidden, shape.ffn_width, **opens)
        self.down = row(shape.ffn_width, step.hidden, **closes)
        if step.vocab:
            self.embed = tensor_parallel.VocabParallelEmbedding(
                step.vocab, step.hidden, reduce_scatter_embeddings=sp, **told
            )
            self.head = column(step.hidden, step.vocab, **{**opens, "bias": False})
        self.sequence_parallel = sp
        self._fill(step, whole, rank)

    def _fill(self, step: Layer, whole: WholeBlock, rank: int) -> None:
        """The whole layer's numbers, this rank's part of them."""
        parts = {each.name: each for each in step.pieces(rank)}
        mine = dict(self.named_parameters())
        with torch.no_grad():
            for name, weight in whole.named_parameters():
                mine[name].copy_(piece_of(weight, parts[name]))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The stream to the stream."""
        return self._through(x_BTD.transpose(0, 1)).transpose(0, 1)

    def _through(self, x_TBD: Tensor) -> Tensor:
        x_TBD = x_TBD + self.out(self._attend(self.qkv(self.norm1(x_TBD))[0]))[0]
        return x_TBD + self.down(F.gelu(self.up(self.norm2(x_TBD))[0]))[0]

    def _attend(self, qkv_TBX: Tensor) -> Tensor:
        """This rank's heads."""
        queries, pairs = self.heads
        sizes = [len(each) * self.head_dim for each in (queries, pairs, pairs)]
        q, k, v = (
            each.unflatten(-1, (-1, self.head_dim)).permute(1, 2, 0, 3)
            for each in qkv_TBX.split(sizes, -1)
        )
        times = len(queries) // len(pairs)
        k, v = (each.repeat_interleave(times, 1) for each in (k, v))
        y_BHTK = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y_BHTK.permute(2, 0, 1, 3).flatten(2)

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy, by the vocabulary's parts."""
        from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

        x = self.embed(tokens_BT)  # under sequence parallelism tokens come first already
        x_TBD = x if self.sequence_parallel else x.transpose(0, 1)
        logits_TBV = self.head(self._through(x_TBD))[0]
        return vocab_parallel_cross_entropy(
            logits_TBV.contiguous(), targets_BT.T.contiguous()
        ).mean()


@contextlib.contextmanager
def grid(num_ranks: int) -> Iterator[None]:
    """megatron-core's groups of ranks, all of them along tp, while the block runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of accelerators that are not there
        from megatron.core import parallel_state

        parallel_state.initialize_model_parallel(tensor_model_parallel_size=num_ranks)
        device = torch.get_default_device()  # of this thread; the backward runs in others
        with mock.patch.object(torch.cuda, "current_device", lambda: device):
            yield
