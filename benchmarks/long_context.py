"""Does attention over a cut sequence give one process's numbers, and need an nth of its memory?


    python benchmarks/long_context.py [--json]

One sequence of 256 tokens, 8 heads of 128, causal, on pretend devices. ``output`` and ``gradient``:
the largest difference of any rank from one process. ``handed_in``: payload bytes of a rank,
predicted and counted. ``kept``: what a rank keeps for the backward, predicted and counted.
``peak``: the most that the pass adds to a rank's device memory, predicted (a ring's) and as its
allocator says; of the ranks the fullest, of Ulysses the least full, since gloo's thread may let a
message go a moment late, one time or another. ``peak_x_n``: that times the ranks, over the
same of 2 ranks: 1 where memory is an nth. ``step_ms``: forward and backward,
simulated and measured, a pair paced at 30 ms; eight ranks share two cores here and are not timed.
"""

import argparse
from collections.abc import Iterator

from report import tell

from labkit.long_context import Attention

WHOLE = Attention(ranks=2, sequence=256, heads=8, head_dim=128, pair_ms=30.0)
TIMED = 4


def rows() -> Iterator[dict]:
    """One per way and number of ranks."""
    for way in (
        {"way": "ring", "balanced": True},
        {"way": "ring", "balanced": False},
        {"way": "ulysses"},
    ):
        first = None
        for ranks in (2, 4, 8):
            attention = WHOLE.but(ranks=ranks, **way)
            found = attention.compare()
            results = list(found.run)
            which = max if attention.way == "ring" else min
            peak = which(each["pass_allocated_bytes"] for each in results)
            first = first or ranks * peak
            (name,) = attention.payload()
            timed = found.readings if ranks <= TIMED else {}
            yield {
                "way": attention.way,
                "balanced": attention.balanced if attention.way == "ring" else "",
                "ranks": ranks,
                "output": max(each["output_difference"] for each in results),
                "gradient": max(each["gradient_difference"] for each in results),
                "handed_in_predicted": attention.payload()[name],
                "handed_in_counted": results[0]["payload_bytes"][name],
                "kept_predicted": attention.kept_bytes(),
                "kept_counted": results[0]["held_bytes"],
                "peak_predicted": attention.pass_bytes(),
                "peak_measured": peak,
                "peak_x_n": round(ranks * peak / first, 3),
                "step_ms_simulated": round(timed["predicted"] / 1e3, 1) if timed else "",
                "step_ms_measured": round(timed["measured"] / 1e3, 1) if timed else "",
            }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    tell(rows(), parser.parse_args().json)


if __name__ == "__main__":
    main()
