"""Cut layers on real ranks: equal to one process to float error, every collective counted."""

import pytest

import labkit as lab
from labkit.shards import differences, tiling_faults
from labkit.tensor_parallel.layer import Layer, _has_megatron

pytestmark = pytest.mark.real
ODD = Layer(ranks=3, hidden=35, heads=5, ffn=71, vocab=49, sequence=7, batch=3)
CASES = (
    Layer(),
    Layer(sequence_parallel=True),
    Layer(ranks=4, heads=8, kv_heads=4, vocab=52, sequence_parallel=True),
    ODD,
    Layer(ranks=3, hidden=36, heads=6, kv_heads=3, ffn=71, sequence=9, sequence_parallel=True),
    Layer(ranks=2, heads=8, kv_heads=2, vocab=51),
    Layer(engine="torch"),
    Layer(engine="torch", sequence_parallel=True),
    Layer(engine="torch", ranks=4, heads=8, kv_heads=4, vocab=52),
    Layer(engine="torch", ranks=4, heads=8, kv_heads=4, vocab=52, sequence_parallel=True),
    Layer(engine="megatron", vocab=50),
    Layer(engine="megatron", ranks=4, heads=8, kv_heads=4, vocab=52, sequence_parallel=True),
)


@pytest.mark.a_few(3)
@pytest.mark.parametrize("layer", CASES, ids=str)
def test_a_cut_layer_is_one_process_s_and_its_collectives_are_the_predicted_ones(layer):
    if layer.engine == "megatron" and not _has_megatron():
        pytest.skip("megatron-core is not installed")
    run = layer.run()
    expected = [(each.collective, each.num_bytes) for each in layer.messages()]
    for result in run:
        assert result["output_difference"] < 3e-6
        assert result["gradient_difference"] < 3e-5
        assert result["order"] == expected
        assert result["payload_bytes"] == layer.payload()
        assert result["loss"] != 0
    found = layer.measured(run)
    assert differences(layer.predict(), found) == []
    sizes = {}
    for piece in layer.pieces(0):
        sizes[piece.name] = max(stop for name, _, stop in _slices(layer) if name == piece.name)
    assert tiling_faults(found, sizes) == []
    assert layer.difference(layer.predict(), found).total == 0


def _slices(layer):
    for row in layer.predict().rows():
        yield row[2], row[3], row[4]


def test_a_wrong_cut_is_seen(monkeypatch):
    layer = Layer()
    run = layer.run()
    other = layer.but(ffn=248)
    assert differences(other.predict(), layer.measured(run))
    assert run[0]["payload_bytes"] != layer.but(batch=1).payload()


def test_its_timeline_has_the_collectives():
    run = ODD.run()
    comm = run.timeline()
    comm = comm.select(comm.lane == "comm")
    assert len(comm) == ODD.ranks * len(ODD.messages())


@pytest.mark.again
def test_what_is_kept_shrinks_with_the_sequence_cut_and_most_where_inputs_are_gathered_again():
    layer = Layer(ranks=4, heads=8, batch=4)
    engines = ["by hand", "megatron"] if _has_megatron() else ["by hand"]
    kept = {}
    for engine in engines:
        for is_cut in (False, True):
            run = layer.but(engine=engine, sequence_parallel=is_cut).run()
            kept[engine, is_cut] = run[0]["activation_bytes"]
    assert all(kept[engine, True] < kept[engine, False] for engine in engines)
    assert kept[engines[-1], True] <= kept["by hand", True]


def test_a_sweep_draws_what_the_fullest_rank_holds():
    swept = lab.sweep(ODD, ranks=[1, 2, 4], run=[4])
    held = list(swept.predicted)
    assert held == sorted(held, reverse=True) and held[-1] > held[0] / 4  # norms are whole
    assert swept.measured == {4: held[-1]}


def test_it_compares_and_shows_itself():
    compared = Layer().compare()
    assert compared.difference().total == 0
    assert set(compared.bundle(language="zh")) >= {"text/html", "image/png", "text/plain"}
