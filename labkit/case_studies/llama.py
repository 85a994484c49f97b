"""LLaMA-13B on four devices: the plan as it is often printed, what becomes of it, and what would
fit.

    case_studies.llama.as_written()         # draws itself: what hangs over the line is too much

The plan: four A100 of 40 GB, FSDP over all of them, everything kept in fp32 and computed in bf16,
a microbatch of 2 sequences, 16 of them accumulated, every layer recomputed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import words
from labkit.planner.plan.layout import Layout, written
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.search import Search, search
from labkit.sharding import partition, states
from labkit.shown import Shown
from labkit.units import check_whole, format_bytes
from labkit.words import both, say, spoken_in
from labkit.zero import offload_times

if TYPE_CHECKING:
    from labkit.planner.plan.search import Candidate
    from labkit.shown import Picture

MODEL = "LLaMA 13B"
CARDS = {24: "A10G 24 GB", 40: "A100 40 GB", 80: "A100 80 GB"}
"""GB -> a card that has them"""
BATCH = 128
"""sequences of a step: 2 a microbatch, 16 accumulated, on 4 cards"""
LINK_GB_PER_S = 25.0
"""stated: what PCIe 4.0 x16 carries between a card and its host"""
FREE = 0.1
"""of a card, that a layout worth trying leaves free"""
HOST_GB_PER_S = 200.0
"""stated: what the memory of the host moves, for all its cards together"""
USUAL = {"tp": 1, "pp": 1, "zero": 0, "mbs": 0, "recompute": "none", "offload": "none"}
"""what ``layouts`` doesn't say of a layout"""
BETWEEN = ("tensor", "context", "expert", "gather", "pipeline", "data")
"""parts of a planned step in which it waits for messages between cards"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Case(Shown):
    """A plan that somebody made, and whether it lives. Draws itself against its card."""

    name: dict[str, str]
    """what it is called, in each language"""
    plan: Plan
    """with its own numbers"""

    @property
    def held_bytes(self) -> float:
        """What the fullest card holds at its highest point."""
        return self.plan.memory().peak_bytes

    @property
    def over_bytes(self) -> float:
        """How much that is more than the card has; below 0: left free."""
        return self.held_bytes - self.plan.cluster.device_bytes

    @property
    def host_bytes(self) -> float:
        """Of the states, what lies on the host, of all cards together: Adam's, and by DeepSpeed
        gradients (``partition.offload_places``)."""
        if self.plan.offload == "none":
            return 0.0
        params = self.plan.shape.params
        if self.plan.zero > 1:
            microbatches = self.plan.layout.num_microbatches
            about = (params, 1, self.plan.zero, "optimizer", microbatches)
            return sum(partition.offload_places(*about)[1].values())
        kinds = states.state_bytes(params, recipe_name=self.plan.layout.recipe)
        return states.by_category(kinds)["optimizer"]

    def devices(self) -> list[dict[str, object]]:
        """A row for each card, for ``lab.table``: what it holds, what it has, what is too much.
        Cards of one pipeline stage hold alike."""
        rows = []
        each = self.plan.gpus // self.plan.pp
        for card in range(self.plan.gpus):
            held = self.plan.memory().stage_bytes[card // each]
            has = self.plan.cluster.device_bytes
            rows.append({"card": card, "held_bytes": held, "card_bytes": has})
            rows[-1]["over_bytes"] = max(0.0, held - has)
        return rows

    def row(self, language: str | None = None) -> dict[str, object]:
        """For ``lab.table``: the name, what the fullest card holds and has, what is too much, what
        lies on the host, and the step."""
        return {
            "case": self.name[spoken_in(language)],
            "held_bytes": self.held_bytes,
            "card_bytes": self.plan.cluster.device_bytes,
            "over_bytes": max(0.0, self.over_bytes),
            "host_bytes": self.host_bytes,
            "step_us": step_us(self.plan),
        }

    def told(self, language: str | None = None) -> str:
        """In a sentence."""
        with words.meanwhile(words.spoken_in(language)):
            amount = {"amount": format_bytes(abs(self.over_bytes))}
            if self.over_bytes > 0:
                return say("It dies: {amount} too much on the fullest card.", **amount)
            return say("It fits: {amount} left on the fullest card.", **amount)

    def _picture(self, language: str) -> "Picture":
        from labkit.case_studies import picture

        return picture.drawn([self], language)

    def __repr__(self) -> str:
        return f"Case({self.name['en']}: {self.told('en')})"


def layouts(card: str, seq: int) -> list[dict[str, object]]:
    """A row for each layout of LLaMA 13B on four cards that a program runs, fitting or not, the
    fastest first; a step has ``BATCH`` sequences of ``seq`` tokens. The program; whether Adam is on
    the host ("optimizer") or not ("none"); the layout, as ``Plan.but`` takes it, without what is
    ``USUAL`` (``sp`` goes with ``tp``); what the fullest card holds; what it may, so that ``FREE``
    stays free; and the step, with ``host_us``. Raises ValueError for a card or length that can't
    be."""
    check_whole(1, 10**6, seq=seq)
    rows: list[dict[str, object]] = []
    for offload in ("none", "optimizer"):
        asked = Plan(model=MODEL, gpu=card, gpus=4, batch=BATCH, seq=seq, offload=offload)
        found = search(asked)
        for each in (*found.fitting, *found.too_large):
            layout = each.layout
            if layout.vpp > 1 or (offload != "none" and _is_nobodys(layout)):
                continue
            row: dict[str, object] = {"program": _program(layout), "offload": offload}
            told = {"tp": layout.tp, "pp": layout.pp, "zero": layout.zero, "mbs": layout.mbs}
            told |= {"recompute": layout.recompute, "offload": offload}
            row["layout"] = {name: cut for name, cut in told.items() if cut != USUAL[name]}
            row["memory_bytes"] = each.peak_bytes
            row["room_bytes"] = (1 - FREE) * each.device_bytes
            row["step_us"] = each.step_us + host_us(found.plan, layout)
            rows.append(row)
    return sorted(rows, key=lambda row: row["step_us"])


def _program(layout: Layout) -> str:
    """Which program usually runs a layout."""
    if layout.zero < 3:
        return "Megatron-LM"
    return "FSDP" if layout.offload == "none" else "DeepSpeed"


def with_option(plan: Plan) -> list[dict[str, object]]:
    """For ``lab.table``, how a plan of FSDP lives while the Trainer accumulates: a row without the
    option ``sync_each_batch`` and one with it. What a card keeps of gradients between microbatches
    (all of them in bf16, or the shard that is planned), what it holds, how often in a step
    gradients travel, the step, and what of it are waits for messages between cards: both are None
    without the option, since the planner counts the messages of every microbatch. Raises ValueError
    for what is no plan of ZeRO 3."""
    if not isinstance(plan, Plan) or plan.zero != 3:
        raise ValueError(f"FSDP shards all states: take a planner.Plan of zero 3; got {plan!r:.80}")
    memory = plan.memory()
    shard = memory.parts["gradients"]
    whole = 2.0 * plan.shape.params
    rows: list[dict[str, object]] = []
    planned = (plan.layout.num_microbatches, step_us(plan), between_us(plan))
    for told, kept, times, taken_us, waits_us in (
        (say("option|without"), whole, 1, None, None),
        (say("option|with it"), shard, *planned),
    ):
        row: dict[str, object] = {say("the option"): told, say("gradients") + "_bytes": kept}
        row["memory_bytes"] = memory.peak_bytes - shard + kept
        row[say("gradients travel")] = times
        row["step_us"] = taken_us
        row[say("waits for messages") + "_us"] = waits_us
        rows.append(row)
    return rows


def between_us(plan: Plan) -> float:
    """What a step waits for messages between cards that nothing hides."""
    parts = plan.time().parts()
    return sum(parts[part] for part in BETWEEN)


def step_us(plan: Plan) -> float:
    """A plan's step, with what Adam on the host takes."""
    return plan.time().step_us + host_us(plan, plan.layout)


def host_us(plan: Plan, layout: Layout) -> float:
    """What Adam on the host adds to a step of a layout, nothing of it hidden: gradients go there
    (from ZeRO 2 on, by DeepSpeed, in each microbatch), the host updates, weights come back
    (``zero.offload_times``, at LINK_GB_PER_S and HOST_GB_PER_S); 0 where Adam is on the card. The
    planner's own step leaves it out."""
    return sum(host_parts_us(plan, layout))


def host_parts_us(plan: Plan, layout: Layout) -> tuple[float, float]:
    """``host_us`` in two: what the link to the host carries, and what the host's memory moves."""
    if layout.offload == "none":
        return 0.0, 0.0
    params = plan.shape.params
    stage, microbatches = (layout.zero, layout.num_microbatches) if layout.zero > 1 else (1, 1)
    found = offload_times.phases(
        states.offload_moves(params, plan.gpus, stage, num_microbatches=microbatches),
        params,
        plan.gpus,
        tokens=0.0,
        tflops=1.0,
        gb_per_s=LINK_GB_PER_S,
        host_gb_per_s=HOST_GB_PER_S / plan.gpus,
    )
    return sum(phase.link_us for phase in found), sum(phase.host_us for phase in found)


def as_written(seq: int = 1024) -> Case:
    """The plan as it is printed. It says nothing of the sequences' length: ``seq`` tokens. Raises
    ValueError for a length that can't be."""
    check_whole(1, 10**6, seq=seq)
    return Case(name=both("as written"), plan=_written(seq))


def _written(seq: int) -> Plan:
    return Plan(
        model=MODEL,
        gpu=CARDS[40],
        gpus=4,
        zero=3,
        mbs=2,
        batch=BATCH,
        seq=seq,
        recompute="full",
        recipe="fp32",  # as FSDP keeps it under bf16=True: 4 + 4 + 8 bytes
    )


def _is_nobodys(layout: Layout) -> bool:
    """Whether no program runs a layout with Adam on the host."""
    return layout.zero == 3 and layout.tp * layout.pp > 1


def roomy(found: Search, free: float) -> "list[Candidate]":
    """What a search found and leaves a share ``free`` of the card free, the fastest first, with
    ``host_us``. With Adam on the host, ZeRO 3 is left out where it cuts tensors or layers as well:
    no program does all of it."""
    on_host = found.plan.offload != "none"
    room = (1 - free) * found.plan.cluster.device_bytes
    known = [each for each in found.fitting if not (on_host and _is_nobodys(each.layout))]
    fit = [each for each in known if each.peak_bytes <= room]
    return sorted(fit, key=lambda each: each.step_us + host_us(found.plan, each.layout))


def row(found: Search, free: float) -> dict[str, object]:
    """What a search found, for ``lab.table``: the fastest of what is ``roomy``, else the lightest,
    what that is too much by, and no step; and what the lightest of them holds."""
    fit = roomy(found, free)
    shown = fit[0] if fit else found.lightest()
    over = max(0.0, shown.peak_bytes - (1 - free) * found.plan.cluster.device_bytes)
    return {
        "Adam": say("card") if found.plan.offload == "none" else say("host"),
        "fit": len(fit),
        "layout": written(shown.layout),
        "held_bytes": shown.peak_bytes,
        "lightest_bytes": min(each.peak_bytes for each in fit or [shown]),
        "over_bytes": over,
        "step_us": None if over else shown.step_us + host_us(found.plan, shown.layout),
    }
