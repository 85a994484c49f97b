"""What a machine tells of itself, on machines that tell more, less, or nothing; laws that hold on
all of them."""

import subprocess
import time

import psutil
import pytest
from topologies import PAIR

from labkit.machine import hardware, resources


def laws(found):
    """What holds on any machine."""
    numbers = [cpu.number for cpu in found.cpus]
    assert numbers and numbers == sorted(set(numbers)) and found.num_usable >= 1
    assert all(num_bytes > 0 for num_bytes in found.node_bytes.values())
    for one in ("core", "cache", "package"):
        groups = {getattr(cpu, one) for cpu in found.cpus}
        assert groups == set(range(len(groups)))
    for inner, outer in (("core", "cache"), ("cache", "package"), ("core", "node")):
        assert len({(getattr(cpu, inner), getattr(cpu, outer)) for cpu in found.cpus}) == len(
            {getattr(cpu, inner) for cpu in found.cpus}
        )
    names = found.devices.names
    links = found.devices.links
    assert len(links) == len(names) == len(found.devices.nodes) == len(found.devices.models)
    assert all(row[i] == "X" and len(row) == len(names) for i, row in enumerate(links))


@pytest.fixture
def built(monkeypatch, tmp_path):
    """Makes a machine of files: build(files, allowed cpus, what nvidia-smi says to each
    command)."""

    def build(files, allowed, says=None):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text + "\n")
        monkeypatch.setattr(hardware, "_SYSTEM", tmp_path)
        monkeypatch.setattr(
            hardware.os, "sched_getaffinity", lambda pid: set(allowed), raising=False
        )
        monkeypatch.setattr(hardware.os, "cpu_count", lambda: max(allowed) + 1)

        def run(command, **options):
            said = (says or {}).get(command[1], FileNotFoundError(command[0]))
            if isinstance(said, BaseException):
                raise said
            return subprocess.CompletedProcess(command, 0 if said else 9, said or "", "")

        monkeypatch.setattr(hardware.subprocess, "run", run)
        return hardware.topology()

    return build


def epyc():
    """Two packages of two NUMA nodes; each node has two third-level caches of two cores of two
    threads."""
    files = {}
    num_cores = 16
    for core in range(num_cores):
        threads = f"{core},{core + num_cores}"
        cache = 2 * (core // 2)
        package = 8 * (core // 8)
        for cpu in (core, core + num_cores):
            files[f"cpu/cpu{cpu}/topology/core_cpus_list"] = threads
            files[f"cpu/cpu{cpu}/cache/index3/shared_cpu_list"] = (
                f"{cache}-{cache + 1},{cache + 16}-{cache + 17}"
            )
            files[f"cpu/cpu{cpu}/topology/package_cpus_list"] = (
                f"{package}-{package + 7},{package + 16}-{package + 23}"
            )
    for node in range(4):
        files[f"node/node{node}/cpulist"] = (
            f"{4 * node}-{4 * node + 3},{4 * node + 16}-{4 * node + 19}"
        )
        files[f"node/node{node}/meminfo"] = (
            f"Node {node} MemTotal:       65536000 kB\nNode {node} MemFree: 1 kB"
        )
    return files


@pytest.mark.alone  # a bound in seconds
def test_this_machine_obeys_the_laws_and_is_quick():
    laws(hardware.topology())
    began = time.perf_counter()
    found = hardware.topology()
    assert found.num_gpus or time.perf_counter() - began < 0.5  # aim: 0.05 s
    assert found.num_usable == resources.cores()
    if found.num_gpus == 0:
        assert found.devices.names == () and resources.num_gpus() == 0


def test_two_packages_with_nodes_caches_and_threads(built):
    found = built(epyc(), range(32))
    laws(found)
    assert len(found.cpus) == 32 and found.node_bytes == dict.fromkeys(range(4), 65536000 * 1024)
    for cpu in found.cpus:
        core = cpu.number % 16
        assert (cpu.core, cpu.cache, cpu.node, cpu.package) == (
            core,
            core // 2,
            core // 4,
            core // 8,
        )


def test_of_a_part_of_the_cores_groups_are_still_counted_from_zero(built):
    found = built(epyc(), (5, 12, 13, 28))
    laws(found)
    assert [(c.number, c.core, c.cache, c.node, c.package) for c in found.cpus] == [
        (5, 0, 0, 1, 0),
        (12, 1, 1, 3, 1),
        (13, 2, 1, 3, 1),
        (28, 1, 1, 3, 1),
    ]


def test_memory_without_cores_is_a_node_too(built):
    files = epyc() | {"node/node7/cpulist": "", "node/node7/meminfo": "Node 7 MemTotal: 1000 kB"}
    assert built(files, range(32)).node_bytes[7] == 1_024_000


def test_the_only_node_has_all_the_memory(built):
    files = {name: text for name, text in epyc().items() if not name.startswith("node/")}
    files |= {"node/node0/cpulist": "0-31", "node/node0/meminfo": "Node 0 MemTotal: 1000 kB"}
    assert built(files, range(32)).node_bytes == {0: psutil.virtual_memory().total}


@pytest.mark.parametrize(
    "drop", ["node/", "cache/", "topology/package", "topology/core", "meminfo", "cpu/"]
)
def test_whatever_a_container_hides_leaves_a_topology(built, drop):
    found = built({name: text for name, text in epyc().items() if drop not in name}, range(32))
    laws(found)
    assert len(found.cpus) == 32
    if drop == "node/":
        assert found.node_bytes == {0: psutil.virtual_memory().total} and {
            cpu.node for cpu in found.cpus
        } == {0}
    if drop == "cache/":
        assert all(cpu.cache == cpu.package for cpu in found.cpus)


def test_nonsense_in_the_files_does_not_raise(built):
    files = dict.fromkeys(epyc(), "none")
    laws(built(files, range(4)))


def test_a_machine_without_sysfs_is_one_package_of_cores(built, monkeypatch):
    found = built({}, range(8))
    laws(found)
    assert [cpu.core for cpu in found.cpus] == [*range(8)] and {
        cpu.package for cpu in found.cpus
    } == {0}
    monkeypatch.delattr(hardware.os, "sched_getaffinity", raising=False)  # macOS
    monkeypatch.setattr(resources, "cores", lambda: 8)
    assert hardware.topology() == found


def test_a_quota_says_how_many_cores_can_be_busy(built, monkeypatch):
    monkeypatch.setattr(resources, "cores", lambda: 3)
    found = built(epyc(), range(32))
    assert found.num_usable == 3 and len(found.cpus) == 32


LIST = "".join(
    f"GPU {i}: NVIDIA GeForce RTX 4090 (UUID: GPU-00000000-0000-0000-0000-00000000000{i})\n"
    for i in (0, 1)
)


def test_gpus_have_links_nodes_and_models(built):
    found = built(epyc(), range(32), {"-L": LIST, "topo": PAIR})
    laws(found)
    assert found.num_gpus == 2 and found.devices.links == (("X", "PHB"), ("PHB", "X"))
    assert found.devices.models == ("NVIDIA GeForce RTX 4090",) * 2 and found.devices.nodes == (
        0,
        0,
    )


@pytest.mark.parametrize(
    "topo", ["Failed to initialize NVML\n", OSError("no"), subprocess.TimeoutExpired("x", 20)]
)
def test_a_driver_that_hides_its_links_still_names_its_gpus(built, topo):
    found = built(epyc(), range(32), {"-L": LIST, "topo": topo})
    laws(found)
    assert found.num_gpus == 2 and found.devices.links == (("X", "?"), ("?", "X"))


def test_nvidia_smi_without_a_gpu_is_no_gpu(built):
    found = built(epyc(), range(32), {"-L": "No devices found.\n", "topo": OSError("gone")})
    laws(found)
    assert found.num_gpus == 0 and found.devices.names == ()


def test_slices_of_a_gpu_are_one_gpu(built):
    listed = LIST.splitlines()[0] + "".join(
        f"\n  MIG 1g.10gb     Device  {i}: (UUID: MIG-{i})" for i in (0, 1)
    )
    assert built(epyc(), range(32), {"-L": listed, "topo": ""}).devices.names == ("GPU0",)
