"""One machine as a drawing: its memory, its hardware threads, its GPUs, and the way between any
two devices."""

from labkit.machine.topology import WAYS, Cpu, Devices, Topology
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Sketch, Words, legend
from labkit.pictures.style import CYCLE, KINDS
from labkit.units import format_bytes
from labkit.words import speaking

_TOP_PX = 60.0
_LINE_PX = 28.0  # from one line of boxes in a node's frame to the next
_LEFT_PX = 10.0
_CORE_GAP_PX, _CACHE_GAP_PX = 3, 9  # between threads of different cores, of different caches


def topology(machine: Topology, *, language: str | None = None) -> Sketch:
    """One machine: per NUMA node its memory, its hardware threads and its GPUs; below, the way
    between any two devices.

    Threads that touch are of one core; threads of one colour share a third-level cache.
    """
    devices = machine.devices
    num_cores = len({cpu.core for cpu in machine.cpus})

    def build(words: dict[str, str]) -> Sketch:
        shapes, end_px = _nodes(machine, words)
        keys = _thread_keys(num_cores < len(machine.cpus), words)
        key_shapes, end_px = legend(keys, 0, end_px)
        way_shapes = []
        if devices.names:
            way_shapes, end_px = _ways(devices, end_px + 6, words)
        numbers = _sizes(machine, num_cores, words)
        table = tuple(zip(*numbers, strict=True))
        if devices.names:
            rows = zip(devices.names, devices.links, strict=True)
            table = (("", *devices.names), *((name, *ways) for name, ways in rows))
        return Sketch(
            shapes=(*shapes, *key_shapes, *way_shapes),
            height_px=end_px,
            heading=words["machine"],
            numbers=numbers,
            badge=words["reported"],
            table=table,
            language=words["code"],
        )

    return speaking(language, build)


def _sizes(machine: Topology, num_cores: int, words: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """How much of everything there is."""
    return (
        (words["cores"], str(num_cores)),
        (words["threads"], str(len(machine.cpus))),
        (words["memory"], format_bytes(sum(machine.node_bytes.values()))),
        (words["usable"], str(machine.num_usable)),
        ("GPU", str(machine.num_gpus)),
    )


def _thread_keys(
    several_per_core: bool, words: dict[str, str]
) -> list[tuple[tuple[Shape, ...], str]]:
    """The legend of hardware threads."""
    half = Box(0, -8, 11, 16, CYCLE[0][0])
    keys = []
    if several_per_core:
        keys.append(((half, half._replace(x_px=11)), words["one_core"]))
    keys.append(((half._replace(width_px=22),), words["one_cache"]))
    return keys


def _nodes(machine: Topology, words: dict[str, str]) -> tuple[list[Shape], float]:
    """A frame per NUMA node; and where they end."""
    nodes = sorted({*machine.node_bytes, *(cpu.node for cpu in machine.cpus)})
    shapes = []
    top = _TOP_PX
    for node in nodes:
        cpus = [cpu for cpu in machine.cpus if cpu.node == node]
        homes = zip(machine.devices.names, machine.devices.nodes, strict=True)
        near = [name for name, home in homes if home == node]
        y = top + _LINE_PX
        if cpus:
            threads, y = _threads(cpus, y)
            shapes += threads
        if near:
            shapes += _device_boxes(near, y)
            y += _LINE_PX
        label = words["node"].format(node, format_bytes(machine.node_bytes.get(node, 0)))
        shapes += [Box(1, top, WIDTH_PX - 2, y - top), Words(_LEFT_PX, top + 19, label)]
        top = y + 8
    return shapes, top


def _threads(cpus: list[Cpu], y: float) -> tuple[list[Shape], float]:
    """A box per hardware thread, those of one core side by side; and where the next line begins."""
    width = max(24.0, min(60.0, 870 / len(cpus) - 3))
    shapes = []
    x = _LEFT_PX
    before = None
    for cpu in sorted(cpus, key=lambda cpu: (cpu.cache, cpu.core, cpu.number, cpu.package)):
        x += _gap_px(before, cpu)
        if x + width > WIDTH_PX - 8:
            x = _LEFT_PX
            y += 27
        shapes.append(Box(x, y, width, 22, *CYCLE[cpu.cache % 16], (str(cpu.number),)))
        x += width
        before = cpu
    return shapes, y + _LINE_PX


def _gap_px(before: Cpu | None, cpu: Cpu) -> int:
    """The room between two threads that follow one another."""
    if before is None:
        return 0
    if cpu.cache != before.cache:
        return _CACHE_GAP_PX
    return _CORE_GAP_PX if cpu.core != before.core else 0


def _device_boxes(names: list[str], y: float) -> list[Shape]:
    grey = KINDS["wait"].colour
    return [
        Box(_LEFT_PX + 64 * place, y, 60, 22, grey, texts=(name,))
        for place, name in enumerate(names)
    ]


def _ways(devices: Devices, top: float, words: dict[str, str]) -> tuple[list[Shape], float]:
    """The matrix of ways between devices, a colour per kind of way, and what the words mean."""
    width = min(64.0, (WIDTH_PX - 70) / len(devices.names))
    looks = {kind: CYCLE[number] for number, kind in enumerate(WAYS) if kind != "X"}
    shapes = []
    present = set()
    for row, (name, ways) in enumerate(zip(devices.names, devices.links, strict=True)):
        y = top + 20 + 21 * row
        shapes += [
            Words(62, y + 14, name, "end", 11),
            Words(70 + width * (row + 0.5), top + 14, name, "middle", 11),
        ]
        for column, way in enumerate(ways):
            kind = way.rstrip("0123456789")
            present.add(kind)
            look = looks.get(kind, ("", ""))
            shapes.append(Box(70 + width * column, y, width - 2, 19, *look, (way,)))
    keys = [
        ((Box(0, -8, 22, 16, *look),), f"{kind}: {words[kind]}")
        for kind, look in looks.items()
        if kind in present
    ]
    more, end_px = legend(keys, 0, top + 26 + 21 * len(devices.names))
    return shapes + more, end_px
