"""What no data sheet says: four constants of a training stack, each with where it comes from.

A stack is a program on a kind of GPU. One stack's constants do not serve another, so every plan
says whose it used: shipped ones of the nearest stack, or fitted on the user's own rows.
"""

from dataclasses import dataclass, replace

from labkit.units import check_real, check_whole
from labkit.words import both, language, say, spoken_in, to_say, translated

CONSTANTS = ("matmul", "nic", "layer_us", "attention")
"""The constants that may be fitted, the most telling first."""
HBM_SHARE = 0.8
"""What of its memory's bandwidth a kernel reaches that only reads and writes (BabelStream on A100
and H100: 0.8 to 0.9 of the data sheet)."""
MESSAGE_ALPHA_US = 20.0
"""From the end of a stage to the start of the next, beside the bytes: two kernels and a card."""
TILE = 128
"""Rows and columns of a product that one multiprocessor works on at a time (cuBLAS, CUTLASS)."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """How a program uses its machine."""

    name: str
    """what it is called"""
    matmul: float
    """the share of the peak that large products reach"""
    attention: float
    """the share of the peak that attention's own products reach"""
    layer_us: float
    """what a layer takes beside its work, forward and backward of one microbatch, in
    microseconds: launches, and kernels too short to count"""
    nic: float
    """the share of the network cards' bandwidth that collectives across nodes reach"""
    hides_gradients: bool
    """whether data parallelism reduces during the backward"""
    fixed_gb: float
    """what a process holds beside tensors it knows of: context, NCCL's buffers, gaps"""
    source: str
    """where the constants come from"""
    spread: float
    """the error that we allow for in a prediction by these constants, a share; wider than what was
    seen on the rows that they come from, where those are kept"""
    odds: float = 1.0
    """how likely rows are of this stack, before they are looked at"""
    reached: float | None = None
    """the highest MFU among the runs that its constants come from; None where none is known"""
    eager: bool = False
    """whether torch runs operator by operator, so that each keeps what it needs: no fused norm,
    gate or loss; of memory alone"""
    fitted_on: int = 0
    """how many of the user's runs moved its constants from the shipped ones; 0: none"""

    def __post_init__(self) -> None:
        shares = {"matmul": self.matmul, "attention": self.attention, "nic": self.nic}
        check_real(1e-6, 10.0, **shares)
        check_real(0.0, 1e6, layer_us=self.layer_us)

    @property
    def generation(self) -> str:
        """Of GPUs: the last word of a shipped stack's name."""
        return self.name.rpartition("-")[2]

    def called(self, language: str | None = None) -> str:
        """Its name, and that it was fitted, if it was."""
        if not self.fitted_on:
            return self.name
        told = both("{stack} fitted on {n} runs", stack=self.name, n=self.fitted_on)
        return told[spoken_in(language)]

    def trust(self) -> str:
        """How far to trust times by these constants, in a sentence."""
        if self.fitted_on:
            return say(
                "time by constants fitted on {n} runs, from {stack} on: how far off other runs "
                "are, nobody knows before some are left out (planner.validate)",
                n=self.fitted_on,
                stack=self.name,
            )
        return say(
            "time by the constants of {stack} ({source}): we allow for an error of {spread:.0%}; "
            "other runs may be further off",
            stack=self.name,
            source=translated(self.source, language()),
            spread=self.spread,
        )

    def row(self) -> dict[str, object]:
        """For ``lab.table``: its name, its four constants, and its error, as a share."""
        return {
            "stack": self.called(),
            "matmul": self.matmul,
            "attention": self.attention,
            "nic": self.nic,
            "layer_us": self.layer_us,
            "error": self.spread,
        }

    def but(self, **changes: float) -> "Stack":
        """The same with other constants."""
        return replace(self, **changes)


_SC21 = to_say(
    "fitted on Narayanan et al. 2021, tables 1 and 2, and Korthikanti et al. 2022, table 5"
)
_TRIED = to_say(
    "from this project's trials on published rows that are not kept here, November 2026"
)
STACKS = {
    stack.name: stack
    for stack in (
        Stack(
            name="megatron-a100",
            matmul=0.79,
            attention=0.5,
            layer_us=150.0,
            nic=0.4,
            hides_gradients=False,
            fixed_gb=3.0,
            source=_SC21,
            spread=0.12,
            reached=0.563,  # Korthikanti et al. 2022, table 5: 1 T parameters
        ),
        Stack(
            name="megatron-h100",
            matmul=0.65,
            attention=0.45,
            layer_us=150.0,
            nic=0.6,
            hides_gradients=True,
            fixed_gb=4.0,
            source=_TRIED,
            spread=0.2,
        ),
        Stack(
            name="deepspeed-a100",
            matmul=0.6,
            attention=0.45,
            layer_us=300.0,
            nic=0.3,
            hides_gradients=True,
            fixed_gb=3.0,
            source=_TRIED,
            spread=0.25,
        ),
        Stack(
            name="zero3-2021-a100",
            matmul=0.55,
            attention=0.45,
            layer_us=300.0,
            nic=0.084,
            hides_gradients=True,
            fixed_gb=3.0,
            source=to_say("fitted on Narayanan et al. 2021, table 2: ZeRO-3 of early DeepSpeed"),
            spread=0.2,
            odds=0.05,
        ),
        Stack(
            name="fsdp-a100",
            matmul=0.63,
            attention=0.5,
            layer_us=200.0,
            nic=0.5,
            hides_gradients=True,
            fixed_gb=3.0,
            source=_TRIED,
            spread=0.2,
        ),
        Stack(
            name="fsdp-h100",
            matmul=0.5,
            attention=0.4,
            layer_us=200.0,
            nic=0.5,
            hides_gradients=True,
            fixed_gb=3.0,
            source=_TRIED,
            spread=0.25,
        ),
        Stack(
            name="megatron-b200",
            matmul=0.42,
            attention=0.4,
            layer_us=150.0,
            nic=0.6,
            hides_gradients=True,
            fixed_gb=5.0,
            source=_TRIED,
            spread=0.25,
        ),
    )
}
"""Shipped constants by stack."""
EAGER = replace(STACKS["fsdp-a100"], name="torch-eager", eager=True, fixed_gb=0.0)
"""``fully_shard`` over torch's own operators; nothing beside tensors is held."""
NAMED = {**STACKS, EAGER.name: EAGER}
"""What a plan may name: those, and one that is for memory and never fitted."""


GATHERED_ACROSS = "zero3-2021-a100"
"""The one shipped stack that was fitted on runs that gather parameters across nodes."""
LEFT_OUT_TIMES = 3.8
"""How many times as long as by the nearest shipped stack the slowest of those runs took, when none
of them was in the fit (benchmarks/planner.py, left out)."""


def warnings(stack: Stack, num_nodes: int, mfu: float) -> list[str]:
    """Where a plan lies outside of what a shipped stack was fitted on: its parameters are gathered
    across nodes, or its MFU is higher than that of any of those runs. Of a fitted stack nothing."""
    if stack != NAMED.get(stack.name):
        return []
    found = []
    if num_nodes > 1 and stack.name != GATHERED_ACROSS:
        found.append(
            say(
                "parameters are gathered across {n} nodes, as in no run that these constants are "
                "from: published runs of that kind, left out of a fit, took up to {times:g} times "
                "as long as predicted; fit four steps of your own (planner.fit)",
                n=num_nodes,
                times=LEFT_OUT_TIMES,
            )
        )
    if stack.reached and mfu > stack.reached:
        found.append(
            say(
                "its MFU of {mfu:.0%} is above {most:.0%}, the best of the runs that these "
                "constants are from: the step may well take longer",
                mfu=mfu,
                most=stack.reached,
            )
        )
    return found


def nearest(gpu_name: str, zero: int) -> Stack:
    """The shipped stack that is likeliest for a GPU and a ZeRO stage."""
    check_whole(0, 3, zero=zero)
    if not isinstance(gpu_name, str):
        raise ValueError(f"a GPU's name is a word; got {gpu_name!r}")
    engine = "fsdp" if zero == 3 else "megatron"
    generation = next((each for each in ("b200", "h") if each in gpu_name.lower()), "a100")
    if generation == "h":
        return STACKS[f"{engine}-h100"]
    return STACKS["megatron-b200" if generation == "b200" else f"{engine}-a100"]
