"""Answers to chapter 08's exercises, right ones and wrong ones."""

import math

import torch
from torch import distributed as dist
from torch import nn


def order(rank, num_ranks, num_microbatches):
    """The reference for better_order."""
    warmup = min(num_microbatches, num_ranks - 1 - rank)
    actions = [f"{rank}F{k}" for k in range(warmup)]
    for k in range(num_microbatches - warmup):
        actions += [f"{rank}F{warmup + k}", f"{rank}B{k}"]
    return actions + [f"{rank}B{k}" for k in range(num_microbatches - warmup, num_microbatches)]


def filled(rank, order, lag=None):
    """The reference for fill_gaps, with another number of W's that wait if one is given."""
    done = []
    due = []
    for action in order:
        done.append(action)
        if "I" in action:
            due.append(action.replace("I", "W"))
            if len(due) > (rank if lag is None else lag):
                done.append(due.pop(0))
    return done + due


def choose(num_ranks, max_bubble, max_activations):
    """The reference for choose_microbatches."""
    m = max(1, math.ceil((num_ranks - 1) * (1 - max_bubble) / max_bubble))
    if m <= max_activations:
        return "gpipe", m
    return ("1f1b", m) if min(m, num_ranks) <= max_activations else None


def first_fault(chart, forward_only=False, same_step=False):
    """The reference for chart_fault, and two wrong ones."""
    done = set()
    last = len(chart) - 1
    for step in range(len(chart[0])):
        now = {(rank, row[step]) for rank, row in enumerate(chart)}
        for rank, box in sorted(now):
            if box[0] == "F" and rank:
                need = rank - 1, box
            elif box[0] == "B" and not forward_only:
                need = (rank + 1, box) if rank < last else (rank, box.replace("B", "F"))
            else:
                continue
            if need not in (done | now if same_step else done):
                return rank, step
        done |= now
    return None


def two_stages(rank, stage, microbatches, width, share=True):
    """The reference for real_pipeline: all forwards, then all backwards."""
    kept = []
    for batch in microbatches:
        if rank == 0:
            kept.append(stage(batch))
            dist.send(kept[-1].detach(), 1)
        else:
            received = torch.empty(len(batch), width)
            dist.recv(received, 0)
            loss = nn.functional.mse_loss(stage(received.requires_grad_()), batch)
            kept.append((received, loss / len(microbatches) if share else loss))
    for held in kept:
        if rank == 0:
            gradient = torch.empty_like(held)
            dist.recv(gradient, 1)
            held.backward(gradient)
        else:
            held[1].backward()
            dist.send(held[0].grad, 0)


def one_by_one(rank, stage, microbatches, width):
    """Correct, but the stages take turns: no overlap."""
    for batch in microbatches:
        two_stages(rank, stage, [batch], width)
    for weight in stage.parameters():
        weight.grad /= len(microbatches)


def undivided(rank, stage, microbatches, width):
    two_stages(rank, stage, microbatches, width, share=False)


def silent(rank, stage, microbatches, width):
    for batch in microbatches:
        stage(batch if rank == 0 else torch.zeros(len(batch), width))


def deadlocked(rank, stage, microbatches, width):
    for batch in microbatches:
        dist.recv(torch.empty(len(batch), width), 1 - rank)
