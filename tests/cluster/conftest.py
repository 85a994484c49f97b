"""What tests of the practice cluster need: a record of their own, and Slurm or namespaces, else a
reason to skip."""

from collections.abc import Iterator

import pytest

from labkit.cluster.one_machine import network_run, slurm_run, up_run
from labkit.cluster.one_machine.plan import Layout


@pytest.fixture(scope="package")
def slurm() -> None:
    """Slurm is installed here."""
    if why := slurm_run.obstacle():
        pytest.skip(why)


@pytest.fixture(scope="package")
def own_record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The practice cluster of the person who runs the tests is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(tmp_path_factory.mktemp("home")))
        yield
        up_run.down()


@pytest.fixture(scope="package")
def namespaces() -> None:
    """Network namespaces can be made here."""
    if why := network_run.obstacle():
        pytest.skip(why)


@pytest.fixture(scope="package")
def two_nodes(own_record, namespaces, slurm) -> Iterator[object]:
    """Two nodes with Slurm, 200 Mbit/s and 1 ms between them."""
    yield up_run.up(Layout(bandwidth_bit_per_s=200e6, latency_s=1e-3))
