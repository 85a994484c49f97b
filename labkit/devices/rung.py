"""The ladder: which devices a launch's ranks stand on, and what is said of them.

    cuda      each rank has a GPU of its own, and they communicate by nccl
    shared    the ranks share what GPUs there are; gloo carries messages through the host
    pretend   each rank has a pretend device: an accelerator's memory and rules, the CPU's speed
    cpu       plain CPU tensors, gloo

The first that the machine can do is taken, ``shared`` only if asked for: by the launch
(``devices=``), or for a whole course by the environment (``LABKIT_DEVICE=shared``). A step on a
pretend device takes what it takes on the CPU, within some percent (``benchmarks/pretend.py``), and
a program that runs there runs on a GPU: so it goes before the plain CPU.
"""

import os
from dataclasses import asdict, dataclass

from labkit.units import check_real, check_word

VARIABLE = "LABKIT_DEVICE"
"""The environment variable that forces a rung for every launch that does not name one."""
NAMES = ("cuda", "shared", "pretend", "cpu")
BACKENDS = {"cuda": "nccl", "shared": "shared", "pretend": "pretend", "cpu": "gloo"}
"""What the ranks of each rung communicate with, by the name that torch.distributed gets."""
DEEPSPEED = "deepspeed"
"""What a launch says for ``devices`` whose ranks run DeepSpeed: what any launch gets, but never a
shared GPU, for which DeepSpeed wants NCCL: then the CPU."""
TRAINER = "trainer"
"""The same for the Trainer of transformers, which looks for devices that it knows by name: a GPU
each, else the CPU."""
LIBRARIES = {
    "cuda": (),
    "shared": ("through_host",),
    "pretend": ("pretend", "through_host"),
    "cpu": (),
}
"""Which of our C++ libraries each rung needs."""
NOTES = {
    "cuda": ("nccl",),
    "shared": ("gloo", "shared GPU"),
    "pretend": ("gloo", "pretend device"),
    "cpu": ("gloo",),
}
"""What stands beside every number and in every picture of such a run."""


@dataclass(frozen=True, kw_only=True)
class Pretend:
    """What a pretend device is like; all ranks get the same kind."""

    memory_mib: float | None = None
    """its memory in MiB (2**20 bytes); None: as much as the machine has"""
    link_gb_per_s: float | None = None
    """how fast copies between host and device are, in GB/s (1e9 bytes); None: as fast as they
    are"""
    link_latency_us: float = 0.0
    """what each such copy takes besides, in microseconds"""

    def __post_init__(self) -> None:
        if self.memory_mib is not None:
            check_real(1e-3, 1e9, memory_mib=self.memory_mib)
        if self.link_gb_per_s is not None:
            check_real(1e-6, 1e6, link_gb_per_s=self.link_gb_per_s)
        check_real(0.0, 1e9, link_latency_us=self.link_latency_us)


def pretend(
    *,
    memory_mib: float | None = None,
    link_gb_per_s: float | None = None,
    link_latency_us: float = 0.0,
) -> Pretend:
    """Pretend devices for a launch, one per rank: ``lab.launch(fn, devices=lab.pretend(...))``.

    ``memory_mib``: each device's memory in MiB; a tensor too many raises torch.OutOfMemoryError.
    ``link_gb_per_s`` and ``link_latency_us``: how long copies between host and device take. What
    is left out is not limited. Raises ValueError for sizes that can be none.
    """
    return Pretend(
        memory_mib=memory_mib, link_gb_per_s=link_gb_per_s, link_latency_us=link_latency_us
    )


@dataclass(frozen=True, kw_only=True)
class Rung:
    """Where all ranks of one launch stand."""

    name: str
    """one of NAMES"""
    backend: str
    """what torch.distributed is told"""
    pretend: Pretend | None = None
    """what the devices are like, where they are pretend ones"""

    def __post_init__(self) -> None:
        check_word(self.name, NAMES, "a rung")
        check_word(self.backend, (BACKENDS[self.name],), f"the backend of {self.name}")

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be said with every number of such a run."""
        return NOTES[self.name]

    @property
    def carrier(self) -> str:
        """What carries the messages in the end: "gloo" or "nccl\"."""
        return self.notes[0]

    @property
    def has_gpu(self) -> bool:
        """Whether its devices are real GPUs."""
        return self.name in ("cuda", "shared")

    def to_json(self) -> dict:
        """As it is sent to the ranks."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict) -> "Rung":
        """What ``to_json`` wrote."""
        pretend = content["pretend"]
        return cls(**{**content, "pretend": None if pretend is None else Pretend(**pretend)})


def said_of(backend: str) -> tuple[str, ...]:
    """The notes of the rung whose ranks communicate with a backend, by torch's name for it; the
    name itself for one that is none of ours."""
    notes = {BACKENDS[name]: NOTES[name] for name in NAMES}
    return notes.get(backend, (backend,))


def choose(
    num_ranks: int,
    num_gpus: int,
    *,
    devices: str | Pretend | None = None,
    backend: str | None = None,
    has_pretend: bool = False,
) -> Rung:
    """The rung for a launch: what ``devices`` names, else what ``backend`` needs ("nccl" or
    "gloo"), else what the environment forces, else a GPU each, else pretend devices where
    ``has_pretend`` says that they can be had, else the CPU.

    Raises ValueError for names that are none, for what contradicts itself, and for GPUs that this
    machine lacks.
    """
    if backend not in (None, "nccl", "gloo"):
        raise ValueError(f'backend is "nccl", "gloo" or None; got {backend!r}')
    if devices is not None and backend is not None:
        raise ValueError(
            f"devices={devices!r} says what the ranks communicate with, and so does "
            f"backend={backend!r}. Leave backend out."
        )
    if isinstance(devices, Pretend):
        return Rung(name="pretend", backend=BACKENDS["pretend"], pretend=devices)
    if devices == DEEPSPEED:
        devices = "cpu" if _forced(num_ranks, num_gpus) == "shared" else None
    if devices == TRAINER:
        devices = _known_by_name(num_ranks, num_gpus)
    by_backend = {None: None, "nccl": "cuda", "gloo": "cpu"}[backend]
    name = devices or by_backend or _forced(num_ranks, num_gpus)
    name = name or _best(num_ranks, num_gpus, has_pretend)
    if name not in NAMES:
        raise ValueError(
            f"devices is one of {', '.join(NAMES)}, or lab.pretend(memory_mib=...); got {devices!r}"
        )
    asked = {name: f"{VARIABLE}={name}", devices: f"devices={name!r}", by_backend: backend}[name]
    _check_gpus(name, num_ranks, num_gpus, asked)
    pretend = Pretend() if name == "pretend" else None
    return Rung(name=name, backend=BACKENDS[name], pretend=pretend)


def _best(num_ranks: int, num_gpus: int, has_pretend: bool) -> str:
    """The rung where nobody asks for one. Several ranks share a GPU only if asked for."""
    if num_gpus >= num_ranks:
        return "cuda"
    return "pretend" if has_pretend else "cpu"


def _known_by_name(num_ranks: int, num_gpus: int) -> str:
    """A GPU each, else the CPU; the CPU too where the environment names another rung."""
    forced = _forced(num_ranks, num_gpus) or "cuda"
    return "cuda" if forced == "cuda" and num_gpus >= num_ranks else "cpu"


def _forced(num_ranks: int, num_gpus: int) -> str | None:
    """The rung that the environment names, None where it names none. With cuda, what needs more
    GPUs than there are shares them."""
    name = os.environ.get(VARIABLE) or None
    if name is not None and name not in NAMES:
        raise ValueError(f"{VARIABLE} is one of {', '.join(NAMES)}; got {name!r}. Unset it.")
    if name == "cuda" and 0 < num_gpus < num_ranks:
        return "shared"
    return name


def _check_gpus(name: str, num_ranks: int, num_gpus: int, asked: str) -> None:
    """Raises ValueError where a rung needs GPUs that are not there."""
    needed = {"cuda": num_ranks, "shared": 1}.get(name, 0)
    if num_gpus < needed:
        each = "a GPU for each rank" if name == "cuda" else "a GPU"
        raise ValueError(
            f"{asked} needs {each}; asked for {num_ranks} ranks, this machine has {num_gpus} "
            'GPUs. Leave it out, or ask for devices="pretend".'
        )
