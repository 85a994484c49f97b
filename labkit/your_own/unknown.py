"""What labkit can't know of a module, in words: what it guessed, and what to do about it."""

from labkit.planner.real.counted import Counted
from labkit.words import say
from labkit.your_own.step import Step

OUTSIDE = 0.2
"""the share of the parameters outside of the layers from which it is told"""


def doubts(step: Step) -> list[dict[str, str]]:
    """For ``lab.table``: what is not known of the step's module, and the way out, a row each. The
    last row holds of every module. Raises ValueError for a module that can't be measured."""
    shape = step.shape()
    found = [*_of_layers(shape), *_of_attention(shape)]
    if step.loss is None:
        found.append(
            (
                say(
                    "what you train for: no loss was given, so a run takes an output of one number "
                    "as the loss, and of any other the mean of its squares"
                ),
                say("give loss=, a function of the output and the batch"),
            )
        )
    found.append(
        (
            say("how long a step takes: the constants are those of other programs and machines"),
            say("measure four runs of your own, and fit them (planner.fit, chapter 22)"),
        )
    )
    return [{"not known": what, "way out": way_out} for what, way_out in found]


def _of_layers(shape: Counted) -> list[tuple[str, str]]:
    """What lies outside of them, and what lies on both ends."""
    layers = shape.layers * shape.counted_layer_params
    outside = 1 - layers / shape.params
    found = []
    if outside > OUTSIDE:
        found.append(
            (
                say(
                    "{share:.0%} of the parameters lie outside of the {layers} equal layers that "
                    "were found: a plan neither cuts nor gathers them in parts",
                    share=outside,
                    layers=shape.layers,
                ),
                say("more than half: believe the states of the plan, not its activations by stage"),
            )
        )
    if shape.tied:
        found.append(
            (
                say("what to do with tied weights in two stages: the plan counts them on both"),
                say("add their gradients up once a step, before the update; labkit's cut does so"),
            )
        )
    found.append(
        (
            say("how a layer's products could be cut: so no tensor parallelism is planned"),
            say("name a way for each product (parallelize_module, chapter 09)"),
        )
    )
    return found


def _of_attention(shape: Counted) -> list[tuple[str, str]]:
    """Whether half of it need not be computed."""
    if not shape.attention_row_flops or shape.masked:
        return []
    return [
        (
            say("whether attention is causal: a mask given as a tensor doesn't tell"),
            say("if it is, plan.but(model=planner.measured(module, batch, causal=True))"),
        )
    ]
