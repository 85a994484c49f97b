"""Is a layer cut among ranks still the same layer, and are its messages the predicted ones?

    python benchmarks/tensor_parallel.py [--json]

One transformer layer (width 64, 8 heads, 4 of keys and values; "odd": width 35, 5 heads, an MLP 71
wide, which the ranks do not divide), some with a vocabulary of 52 words: embedding, output layer
and loss cut as well. Cut by hand, by torch's DTensor and by megatron-core, with the stream whole
("sp" False) or cut along the sequence. "output_difference" and "gradient_difference" are the
largest from one process on any rank, in fp32: of an element of the output (or of the loss, where
there is one), and of a weight's gradient; "largest_gradient" is what the latter stands beside.
"payload" is the bytes that a rank hands to collectives in a step, forward and backward, predicted
and counted; "calls_off" are calls that differ from the predicted order, "slices_off" slices of
weights and gradients that the live tensors of all ranks hold elsewhere than predicted.
"kept_bytes" is the most that autograd held of the forward, counted tensor by tensor.
"""

import argparse
from collections.abc import Iterator
from itertools import zip_longest

from report import tell

from labkit.shards import differences
from labkit.tensor_parallel import Layer

EVEN = {"hidden": 64, "heads": 8, "kv_heads": 4}
ODD = {"hidden": 35, "heads": 5, "ffn": 71}


def layers() -> Iterator[Layer]:
    """Every engine on 2 and 4 ranks, the sequence whole and cut; odd sizes by hand."""
    for engine in ("by hand", "torch", "megatron"):
        for ranks in (2, 4):
            for is_cut in (False, True):
                for vocab in (0, 52):
                    yield Layer(
                        engine=engine, ranks=ranks, sequence_parallel=is_cut, vocab=vocab, **EVEN
                    )
    for ranks in (2, 3, 4):
        yield Layer(ranks=ranks, vocab=49, sequence=7, **ODD)
        yield Layer(ranks=ranks, sequence=12, sequence_parallel=True, **ODD)


def row(layer: Layer) -> dict:
    """One layer, run."""
    run = layer.run()
    expected = [(each.collective, each.num_bytes) for each in layer.messages()]
    off = 0
    for result in run:
        off += sum(mine != due for mine, due in zip_longest(result["order"], expected))
    return {
        "engine": layer.engine,
        "sizes": "odd" if layer.hidden == ODD["hidden"] else "even",
        "ranks": layer.ranks,
        "sp": layer.sequence_parallel,
        "vocab": layer.vocab,
        "output_difference": f"{max(each['output_difference'] for each in run):.1e}",
        "gradient_difference": f"{max(each['gradient_difference'] for each in run):.1e}",
        "largest_gradient": f"{max(each['largest_gradient'] for each in run):.2g}",
        "calls": sum(run[0]["calls"].values()),
        "predicted_payload_bytes": sum(layer.payload().values()),
        "payload_bytes": max(sum(each["payload_bytes"].values()) for each in run),
        "kept_bytes": max(each["activation_bytes"] for each in run),
        "calls_off": off,
        "slices_off": len(differences(layer.predict(), layer.measured(run))),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    kept = (layer for layer in layers() if layer.refusal("en") is None)
    tell((row(layer) for layer in kept), options.json)


if __name__ == "__main__":
    main()
