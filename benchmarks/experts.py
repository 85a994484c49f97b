"""Do experts on several ranks give one process's numbers, and is every byte and drop predicted?

    python benchmarks/experts.py [--json]

A layer of 8 experts, 2 for each token, 64 tokens on each rank; "skew": how unevenly the router
likes them; "capacity": what an expert takes of a rank's tokens, in even shares (0: all).
"output_difference" and "gradient_difference": the largest of any rank from the dense computation,
one process in which every expert computes every token, in fp32. "all_to_all": bytes that a rank
hands to all-to-alls in a forward and a backward, predicted and counted, of the busiest rank;
"bytes_off": ranks whose count is not the predicted one. "dropped": choices that no expert took, of
all; "loads_off": experts that got another number of tokens from some rank than predicted.
"busiest": tokens of the busiest expert over an even share, counted.
"""

import argparse
from collections.abc import Iterator

from report import tell

from labkit.experts import Layer
from labkit.experts.routing import seen


def layers() -> Iterator[Layer]:
    """Even and uneven routers, with and without a capacity, on 2 to 8 ranks."""
    for ranks in (2, 4, 8):
        for skew in (0.0, 1.0):
            for capacity in (0.0, 1.0, 1.25):
                yield Layer(ranks=ranks, skew=skew, capacity=capacity, token_ms=0.0)


def row(layer: Layer) -> dict:
    """One layer, run."""
    run = list(layer.run())
    loads = seen(run)
    off = 0
    for mine, due in zip(loads, layer.loads().tolist(), strict=True):
        off += sum(one != other for one, other in zip(mine, due, strict=True))
    counted = [each["payload_bytes"]["all_to_all"] for each in run]
    predicted = [layer.payload(rank)["all_to_all"] for rank in range(layer.ranks)]
    by_expert = [sum(column) for column in zip(*loads, strict=True)]
    return {
        "ranks": layer.ranks,
        "skew": layer.skew,
        "capacity": layer.capacity,
        "output_difference": f"{max(each['output_difference'] for each in run):.1e}",
        "gradient_difference": f"{max(each['gradient_difference'] for each in run):.1e}",
        "all_to_all_predicted": max(predicted),
        "all_to_all_counted": max(counted),
        "bytes_off": sum(one != other for one, other in zip(counted, predicted, strict=True)),
        "choices": layer.ranks * layer.tokens * layer.top_k,
        "dropped_predicted": layer.dropped(),
        "dropped_counted": sum(each["num_dropped"] for each in run),
        "loads_off": off,
        "busiest": round(max(by_expert) * layer.experts / sum(by_expert), 2),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    tell(map(row, layers()), parser.parse_args().json)


if __name__ == "__main__":
    main()
