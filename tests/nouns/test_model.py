"""The model is causal, its stages are the model, and the story is what it says."""

import itertools

import pytest
import torch
from torch import nn

from labkit import model


def tiny(num_layers=5):
    torch.manual_seed(0)
    return model.Transformer(num_layers, dim=16, num_heads=2, max_len=12)


def num_blocks(stage):
    return sum(isinstance(layer, model.Block) for layer in stage)


def test_a_position_sees_only_itself_and_the_ones_before():
    transformer = tiny()
    tokens = torch.randint(0, 256, (2, 12))
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 256
    before = transformer(tokens)
    after = transformer(changed)
    assert before.shape == (2, 12, 256)
    assert torch.allclose(before[:, :7], after[:, :7], atol=1e-6)
    assert not torch.allclose(before[:, 7], after[:, 7], atol=1e-3)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4, 5])
def test_the_stages_one_after_the_other_are_the_model(num_stages):
    transformer = tiny()
    stages = model.split(transformer, num_stages)
    tokens = torch.randint(0, 256, (1, 12))
    assert len(stages) == num_stages
    assert torch.equal(nn.Sequential(*stages)(tokens), transformer(tokens))


@pytest.mark.parametrize("num_layers, num_stages", [(5, 2), (5, 3), (8, 3), (16, 16), (7, 4)])
def test_layers_are_spread_evenly_and_keep_their_names(num_layers, num_stages):
    transformer = tiny(num_layers)
    stages = model.split(transformer, num_stages)
    blocks = [num_blocks(stage) for stage in stages]
    assert sum(blocks) == num_layers and max(blocks) - min(blocks) <= 1
    assert isinstance(stages[0][0], model.Embed) and isinstance(stages[-1][-1], model.Head)
    parameters = itertools.chain.from_iterable(stage.named_parameters() for stage in stages)
    names = [f"layers.{name}" for name, _ in parameters]
    assert names == [name for name, _ in transformer.named_parameters()]


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="5 blocks cannot make 6 stages: take 1 to 5"):
        model.split(tiny(), 6)
    with pytest.raises(ValueError, match="dim=10 is not a multiple of 3 heads"):
        model.layers(1, dim=10, num_heads=3)


def test_it_learns_the_story(tmp_path):
    story = tmp_path / "story.txt"
    story.write_text("a rank waits, and waits, and waits. " * 20)
    tokens, targets = model.story_tokens(8, 12, path=story)
    transformer = tiny(2)
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = model.loss(transformer(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert 4.5 < losses[0] < 7 and losses[-1] < 0.5 * losses[0]


def test_story_tokens_are_bytes_of_the_story_and_targets_are_one_byte_further(tmp_path):
    story = tmp_path / "story.txt"
    story.write_bytes(bytes(range(256)))
    tokens, targets = model.story_tokens(5, 7, seed=3, path=story)
    assert tokens.shape == targets.shape == (5, 7)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.equal(targets, tokens + 1)
    assert torch.equal(tokens, model.story_tokens(5, 7, seed=3, path=story)[0])
    assert not torch.equal(tokens, model.story_tokens(5, 7, seed=4, path=story)[0])


def test_a_missing_or_short_story_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="pip install -e"):
        model.story_tokens(1, 1, path=tmp_path / "none.txt")
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(ValueError, match="story of 5 bytes; got length=5"):
        model.story_tokens(1, 5, path=tmp_path / "short.txt")
