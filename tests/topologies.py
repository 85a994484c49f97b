"""Matrices as ``nvidia-smi topo -m`` prints them on known kinds of machines."""

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""  # noqa: E501
PAIR = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tPHB\t0-63\t0\t\tN/A\n"
    "GPU1\tPHB\t X \t0-63\t0\t\tN/A\n" + LEGEND
)
SINGLE = (
    "\t\x1b[4mGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\nGPU0\t X \t0-15\t0\t\tN/A\n"
    + LEGEND
)


def way(one, other, near):
    """How two devices of a DGX A100 are connected; ``near``: on the same NUMA node."""
    if one == other:
        return " X "
    if one.startswith("GPU") and other.startswith("GPU"):
        return "NV12"
    if not near:
        return "SYS"
    return "PIX" if one[:3] == other[:3] else "PXB"


def dgx_a100(card="NIC{}", tabs=True):
    """Eight GPUs behind NVSwitch, two on each of NUMA nodes 3, 1, 7, 5, two network cards beside
    them; two more."""
    homes = 3, 1, 7, 5
    cores = {3: "48-63,176-191", 1: "16-31,144-159", 7: "112-127,240-255", 5: "80-95,208-223"}
    devices = {f"GPU{i}": homes[i // 2] for i in range(8)}
    devices |= {card.format(i): homes[i // 2] for i in range(8)}
    devices |= {card.format(8): 4, card.format(9): 4}
    lines = [["", *devices, "CPU Affinity", "NUMA Affinity"]]
    for one, home in devices.items():
        words = [way(one, other, home == there) for other, there in devices.items()]
        lines.append([one, *words, *((cores[home], str(home)) if one.startswith("GPU") else ())])
    matrix = "\n".join(("\t" if tabs else "    ").join(line) for line in lines)
    names = (
        "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: mlx5_{i}\n" for i in range(10))
        if card == "NIC{}"
        else ""
    )
    return matrix + "\n" + LEGEND + names
