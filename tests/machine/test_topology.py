"""Matrices as ``nvidia-smi topo -m`` prints them on known kinds of machines, and texts that are
none."""

import pytest

from labkit.machine.topology import WAYS, parse_topo

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes \
(e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges \
within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
PAIR = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tPHB\t0-63\t0\t\tN/A\n"
    "GPU1\tPHB\t X \t0-63\t0\t\tN/A\n" + LEGEND
)
SINGLE = (
    "\t\x1b[4mGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \t0-15\t0\t\tN/A\n"
    + LEGEND
)


def way(one, home, other, there):
    """What nvidia-smi prints for two devices near the NUMA nodes ``home`` and ``there``."""
    if one == other:
        return " X "
    if one.startswith("GPU") and other.startswith("GPU"):
        return "NV12"
    if home == there:
        return "PIX" if one[:3] == other[:3] else "PXB"
    return "SYS"


def dgx_a100(card="NIC{}", tabs=True):
    """Eight GPUs behind NVSwitch, two on each of NUMA nodes 3, 1, 7, 5, two network cards beside
    them; two more."""
    homes = (3, 1, 7, 5)
    cores = {3: "48-63,176-191", 1: "16-31,144-159", 7: "112-127,240-255", 5: "80-95,208-223"}
    devices = {f"GPU{i}": homes[i // 2] for i in range(8)}
    devices |= {card.format(i): homes[i // 2] for i in range(8)}
    devices |= {card.format(8): 4, card.format(9): 4}
    lines = [["", *devices, "CPU Affinity", "NUMA Affinity"]]
    for one, home in devices.items():
        words = [way(one, home, other, there) for other, there in devices.items()]
        lines.append([one, *words, *((cores[home], str(home)) if one.startswith("GPU") else ())])
    matrix = "\n".join(("\t" if tabs else "    ").join(line) for line in lines)
    names = (
        "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: mlx5_{i}\n" for i in range(10))
        if card == "NIC{}"
        else ""
    )
    return matrix + "\n" + LEGEND + names


@pytest.mark.parametrize("tabs", [True, False], ids=["tabs", "pasted with spaces"])
def test_a_dgx_a100_has_twelve_nvlinks_between_any_two_gpus_and_cards_beside_them(tabs):
    found = parse_topo(dgx_a100(tabs=tabs))
    assert found.names == tuple(f"GPU{i}" for i in range(8)) + tuple(f"NIC{i}" for i in range(10))
    for i in range(8):
        assert found.links[i][:8] == ("NV12",) * i + ("X",) + ("NV12",) * (7 - i)
    assert found.links[0][8:12] == ("PXB", "PXB", "SYS", "SYS") and found.links[16][17] == "PIX"
    assert found.nodes == (3, 3, 1, 1, 7, 7, 5, 5) + (None,) * 10
    assert found.models == ("",) * 8 + tuple(f"mlx5_{i}" for i in range(10))


def test_older_drivers_name_a_card_by_its_interface():
    found = parse_topo(dgx_a100("mlx5_{}"))
    assert found.names[8:] == tuple(f"mlx5_{i}" for i in range(10)) and found.links[2][10] == "PXB"


def test_a_box_with_nothing_but_pcie():
    found = parse_topo(PAIR)
    assert (found.names, found.links, found.nodes) == (
        ("GPU0", "GPU1"),
        (("X", "PHB"), ("PHB", "X")),
        (0, 0),
    )


def test_one_gpu_in_a_terminal_that_underlines_the_head():
    found = parse_topo(SINGLE)
    assert (found.names, found.links, found.nodes, found.models) == (
        ("GPU0",),
        (("X",),),
        (0,),
        ("",),
    )


def test_a_node_that_is_no_number_is_none():
    text = SINGLE.replace("0-15\t0\t", "N/A\tN/A\t")
    assert parse_topo(text).nodes == (None,) and parse_topo(
        SINGLE.replace("\t0-15\t0\t\tN/A", "")
    ).nodes == (None,)


def test_a_word_that_nobody_has_told_us_is_a_question():
    assert parse_topo(PAIR.replace("PHB", "NEW")).links == (("X", "?"), ("?", "X"))


@pytest.mark.parametrize("text", [dgx_a100(), PAIR, SINGLE], ids=["a100", "pair", "single"])
def test_a_matrix_is_square_symmetric_and_of_known_words(text):
    found = parse_topo(text)
    size = len(found.names)
    assert (
        [len(row) for row in found.links]
        == [size] * size
        == [len(found.nodes)] * size
        == [len(found.models)] * size
    )
    for i in range(size):
        for j in range(size):
            assert found.links[i][j] == found.links[j][i]
            assert found.links[i][j].rstrip("0123456789") in WAYS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        LEGEND,
        PAIR.replace("GPU1\tPHB", "GPU9\tPHB"),
        PAIR[:70],
        "bash: nvidia-smi: command not found",
    ],
)
def test_a_text_without_the_whole_matrix_is_refused(text):
    with pytest.raises(ValueError, match="topo -m"):
        parse_topo(text)
