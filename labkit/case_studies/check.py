"""The exercises of the case studies: a layout that fits, how long the message of a copied net may
be, and a policy for each kind of layer. All are judged on cases that they don't show."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import isfinite
from numbers import Real

from labkit.case_studies.llama import FREE, host_us, roomy, step_us
from labkit.case_studies.perception import PLAIN, SHARE, WEIGHTS, Perception
from labkit.check import exercise, hint, limit, status, wrong
from labkit.planner.plan.layout import refusals, written
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.search import Candidate, as_plan, search
from labkit.units import format_bytes, format_us
from labkit.words import say

__all__ = ["four_cards", "hint", "placement", "policy", "status"]

SLOWER = 1.01
"""steps, for one of the fastest layout that leaves so much"""
CLOSE = 0.01
"""an answer in kB may be off by this share"""
FIELDS = ("tp", "sp", "pp", "zero", "mbs", "recompute", "offload")
PLACED = (
    {"apart": (450.0, 7, 175.6), "together": (157.5, 8, 180.5), "copied": (157.5, 1, 57.7)},
    {"apart": (990.0, 7, 175.6), "together": (292.5, 8, 180.5), "copied": (292.5, 1, 697.0)},
    {"apart": (720.0, 7, 175.6), "together": (225.0, 8, 675.5), "copied": (225.0, 1, 552.8)},
)
"""placement -> milliseconds of computing, messages, kB: chapter 20's net, one with a fusion of some
forty times the weights, and one with heads of some hundred times"""
RATES = ((12.0, 0.6), (60.0, 0.05), (1.0, 2.0))
"""milliseconds a message, and a kB"""
STEPS = 12
LINKS = ((9.0, 2.0), (3.0, 1.0), (1.0, 0.2))
"""milliseconds a message, and 1e6 bytes a second"""
CHOOSE_MS = 3.0
"""stated: to choose the largest of one kind, by top-k"""
CHOICES = {"fp16": (1, 2.0), "top-k": (2, 4 * SHARE)}
"""way -> messages that all kinds on this way share, and bytes of each for a weight"""


@exercise
def four_cards(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(card, seq)`` is a layout for LLaMA 13B on four such cards: a dict with some of tp,
    sp (on with tp, if it is not said), pp, zero, mbs, recompute and offload, as ``planner.Plan``
    takes them.

    The fullest card keeps a tenth of its memory free, by the planner, with sequences of ``seq``
    tokens and 128 of them in a step. Where it can be done without ``offload``, it is done so. The
    step, with what Adam on the host takes (``llama.host_us``), is at most 1 % longer than that
    of the fastest layout of these fields that does the same. Cards are of 24, 40 and 80 GB,
    and no two cases have to have the same layout.
    """
    for card, seq in (
        ("A100 80 GB", 1024),
        ("A100 40 GB", 1024),
        ("A100 40 GB", 4096),
        ("A10G 24 GB", 512),
    ):
        given = answer(card, seq)
        asked = Plan(model="LLaMA 13B", gpu=card, gpus=4, batch=128, seq=seq)
        fault = _unfit(asked, given)
        if fault:
            yield fault


def _unfit(asked: Plan, given: object) -> tuple[str, str] | None:
    """What is wrong with a layout; None where it will do."""
    about = {"card": asked.cluster.gpu.name, "seq": asked.seq}
    if not isinstance(given, dict) or not set(given) <= set(FIELDS):
        return wrong(
            "{card}, {seq} tokens: a layout is a dict with some of {fields}; got {given!r:.80}",
            **about,
            fields=", ".join(FIELDS),
            given=given,
        )
    try:
        plan = _planned(asked, given)
    except (ValueError, TypeError) as error:
        return wrong("{card}, {seq} tokens: {error}", **about, error=error)
    held = plan.memory().peak_bytes
    room = (1 - FREE) * plan.cluster.device_bytes
    about |= {"layout": written(plan.layout), "held": format_bytes(held)}
    if held > room:
        return wrong(
            "{card}, {seq} tokens: {layout} holds {held}; nine tenths of the card are {room}",
            **about,
            room=format_bytes(room),
        )
    if plan.offload != "none" and (other := _fastest(asked)):
        return wrong(
            "{card}, {seq} tokens: {layout} holds {held}, but {other} would do without offload",
            **about,
            other=written(as_plan(asked, other.layout).layout),
        )
    best = _fastest(asked.but(offload=plan.offload))
    best_us = best and best.step_us + host_us(plan, best.layout)
    if best_us and step_us(plan) > SLOWER * best_us:
        return wrong(
            "{card}, {seq} tokens: {layout} takes {step} a step; with as much free it can be done "
            "in {best}",
            **about,
            step=format_us(step_us(plan)),
            best=format_us(best_us),
        )
    return None


def _planned(asked: Plan, given: dict) -> Plan:
    """The plan of a layout that one of the exercise's programs runs. Raises ValueError for any
    other."""
    plan = asked.but(**{"sp": given.get("tp", 1) > 1} | given)
    faults = refusals(plan.shape, plan.cluster, plan.layout)
    if faults:
        raise ValueError(faults[0])
    cut = plan.layout.tp * plan.layout.pp > 1
    if plan.layout.zero == 3 and plan.offload != "none" and cut:
        raise ValueError(say("with zero 3 and offload leave tp and pp out"))
    return plan


def _fastest(asked: Plan) -> Candidate | None:
    """The fastest layout of FIELDS that leaves the room and that a program runs, with what Adam on
    the host takes; None where there is none."""
    fit = (each for each in roomy(search(asked), FREE) if each.layout.vpp == 1)
    return next(fit, None)


@exercise
def placement(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(ways, latency_ms, ms_per_kb)`` is how many kB the message of "copied" has when its
    step takes as long as the faster of "apart" and "together"; 1 % off will do.

    ``ways`` are {name: (milliseconds of computing, messages, kB)}. A message takes latency_ms, and
    ms_per_kb more for each kB; nothing hides behind computing. Three nets on three links; the
    faster of the two is not the same on all.
    """
    for ways, (latency_ms, ms_per_kb) in product(PLACED, RATES):
        given = answer(dict(ways), latency_ms, ms_per_kb)
        about = {"latency": latency_ms, "rate": ms_per_kb, "given": given}
        if isinstance(given, bool) or not isinstance(given, Real) or not isfinite(given):
            yield wrong(
                "{latency:g} ms a message, {rate:g} ms a kB: return how many kB; got {given!r:.80}",
                **about,
            )
            continue
        took_ms = {
            name: computing_ms + messages * latency_ms + kb * ms_per_kb
            for name, (computing_ms, messages, kb) in ways.items()
        }
        other = min(("apart", "together"), key=took_ms.__getitem__)
        computing_ms, messages, _ = ways["copied"]
        copied_ms = computing_ms + messages * latency_ms
        right_kb = (took_ms[other] - copied_ms) / ms_per_kb
        if abs(given - right_kb) > CLOSE * right_kb:
            yield wrong(
                "{latency:g} ms a message, {rate:g} ms a kB, {ways}: with {given:.0f} kB copied "
                "takes {took:.0f} ms, and {other} {best:.0f} ms",
                **about,
                ways=ways,
                took=copied_ms + given * ms_per_kb,
                other=other,
                best=took_ms[other],
            )


@exercise
def policy(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(weights, latency_ms, mb_per_s)`` is a dict: for each kind of layer ("convolution",
    "linear", "norm", "heads") the way of its gradients, "fp16" or "top-k".

    ``weights`` says how many weights each kind has. Kinds on one way share its messages: one of 2
    bytes a weight as fp16, and by top-k two, of 4 bytes for a sixteenth of the weights; choosing
    takes 3 ms for each kind by top-k. By the link that is given, all of it takes at most 2 % longer
    than the fastest choice. On the second link it trains on real ranks: the mean
    loss of the last four of twelve steps is at most 0.1 above that of the plain way.
    """
    for latency_ms, mb_per_s in LINKS:
        given = answer(dict(WEIGHTS), latency_ms, mb_per_s)
        fault = _too_slow(given, latency_ms, mb_per_s)
        if fault:
            yield fault
        elif (latency_ms, mb_per_s) == LINKS[1]:
            ways = tuple((kind, given[kind]) for kind in WEIGHTS)
            with limit(60.0):  # two trainings
                gap = _ended(ways) - _ended(tuple(PLAIN.items()))
            if not gap <= 0.1:
                yield wrong("{gap:.3f} above the plain way is where the loss ends", gap=gap)


def _too_slow(given: object, latency_ms: float, mb_per_s: float) -> tuple[str, str] | None:
    """What is wrong with a policy on a link; None where it will do."""
    about = {"latency": latency_ms, "rate": mb_per_s, "given": given}
    if not isinstance(given, dict) or given.keys() != WEIGHTS.keys():
        return wrong(
            "{latency:g} ms, {rate:g} MB/s: each kind has a way; got {given!r:.80}", **about
        )
    if not all(way in CHOICES for way in given.values()):
        return wrong(
            "{latency:g} ms, {rate:g} MB/s: ways are fp16 and top-k; got {given!r:.120}",
            **about,
        )
    took = _messages_ms(given, latency_ms, mb_per_s)
    best = min(
        _messages_ms(dict(zip(WEIGHTS, each, strict=True)), latency_ms, mb_per_s)
        for each in product(CHOICES, repeat=len(WEIGHTS))
    )
    if took <= 1.02 * best:
        return None
    return wrong(
        "{latency:g} ms, {rate:g} MB/s: the gradients take {took:.1f} ms so; another choice takes "
        "{best:.1f} ms",
        latency=latency_ms,
        rate=mb_per_s,
        took=took,
        best=best,
    )


def _messages_ms(ways: Mapping[str, str], latency_ms: float, mb_per_s: float) -> float:
    """What the gradients of a step take: choosing for each kind by top-k, and the messages, one
    after the other; kinds on one way share theirs."""
    took = CHOOSE_MS * sum(way == "top-k" for way in ways.values())
    for way in set(ways.values()):
        messages, weight_bytes = CHOICES[way]
        weights = sum(WEIGHTS[kind] for kind in ways if ways[kind] == way)
        took += messages * (latency_ms + weight_bytes * weights / (1e3 * mb_per_s))
    return took


def _step(ways: tuple[tuple[str, str], ...]) -> Perception:
    """A short training by a policy, at the machine's own pace."""
    return Perception(
        ways=ways,
        ranks=2,
        steps=STEPS,
        encoders_ms=0.0,
        fusion_ms=0.0,
        heads_ms=0.0,
        latency_us=0.0,
        mb_per_s=1e6,
    )


def _ended(ways: tuple[tuple[str, str], ...]) -> float:
    """The mean loss of its last four steps."""
    losses = _step(ways).run()[0]["losses"]
    return sum(losses[-4:]) / 4
