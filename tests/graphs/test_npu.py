"""The simulated NPU: formulas by hand, networks by their published sizes, tables that load."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.npu import NETWORKS, PAPER_MS, Machine, latency_table, transformer
from graphs.npu.__main__ import main
from graphs.npu.layers import Attention, Convolution, Depthwise, Layer, Lstm, Matrix, Vector
from graphs.npu.lengths import chunks
from lazybatch.profiles import load

MACHINE = Machine()


def test_a_convolution_by_hand() -> None:
    """3 x 3, 256 to 512 channels, 14 x 14 pixels: 18 x 4 tiles of 196 pixels and 256 cycles of fill, memory hidden."""
    demand = Convolution(14, 256, 512, 3).demand(1, MACHINE)
    assert demand.array_cycles == 18 * 4 * (196 + 256)
    assert demand.weight_bytes == 256 * 512 * 9
    assert MACHINE.layer_cycles(demand) == demand.array_cycles + 100


def test_a_matrix_layer_is_bound_by_memory_at_one_row() -> None:
    """A 1024 x 4096 layer takes the time of its 4 MiB through the memory, the same for 1 and for 31 rows."""
    layer = Matrix(1024, 4096)
    one, many = (MACHINE.layer_cycles(layer.demand(rows, MACHINE)) for rows in (1, 31))
    assert one == pytest.approx(1024 * 4096 / (360e9 / 700e6) + 100, rel=1e-9)
    assert many == one
    assert MACHINE.layer_cycles(layer.demand(64, MACHINE)) == 8 * 32 * 64 + 100


def test_depthwise_takes_the_faster_unit() -> None:
    """Fourteen 3 x 3 filters share a tile; where that is slower than the vector unit, the vector unit does it."""
    assert MACHINE.depthwise_array_cycles(49, 1024, 9) == 74 * (49 + 256)
    small, large = Depthwise(7, 1024).demand(1, MACHINE), Depthwise(112, 32).demand(1, MACHINE)
    assert (small.array_cycles, small.vector_cycles) == (0.0, 49 * 1024 * 9 / 128)
    assert (large.array_cycles, large.vector_cycles) == (0.0, 112 * 112 * 32 * 9 / 128)
    wide = Machine(columns=16)
    assert Depthwise(112, 32).demand(1, wide).vector_cycles == 0.0


def test_recurrent_weights_stay_as_far_as_they_fit() -> None:
    """GNMT's recurrent matrix fills the weight SRAM exactly; a wider one is read again for what does not fit."""
    fits, wider = Lstm(1024, 1024, steps=10), Lstm(1024, 1152, steps=10)
    assert fits.demand(1, MACHINE).weight_bytes == 2 * 1024 * 4096
    again = 1152 * 4608 - (4 << 20)
    assert wider.demand(1, MACHINE).weight_bytes == 1024 * 4608 + 1152 * 4608 + 9 * again


def test_activations_that_do_not_fit_travel_through_memory() -> None:
    """Up to 8 MiB cost nothing; every byte beyond takes its time."""
    assert MACHINE.spilled_bytes(8 << 20) == 0.0
    assert MACHINE.spilled_bytes((8 << 20) + 5) == 5.0
    large = Vector(1, 80 << 20)
    assert MACHINE.layer_cycles(large.demand(1, MACHINE)) == pytest.approx((72 << 20) / MACHINE.bytes_per_cycle + 100)


@given(
    st.sampled_from(
        [
            Convolution(14, 64, 96, 3),
            Depthwise(28, 48),
            Matrix(300, 500, 7, 2),
            Attention(5, 9, 64, 4),
            Lstm(100, 130, 6),
            Vector(1000, 3 << 20),
        ]
    ),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_batches_never_cost_more_than_their_parts(layer: Layer, first: int, second: int) -> None:
    """More rows take longer, and two batches as one take at most the two alone (up to what then leaves the SRAM)."""
    together, a, b = (layer.demand(rows, MACHINE) for rows in (first + second, first, second))
    cycles = [MACHINE.layer_cycles(demand) for demand in (together, a, b)]
    spilled = MACHINE.spilled_bytes(together.activation_bytes) / MACHINE.bytes_per_cycle
    assert cycles[0] >= max(cycles[1:]) - 1e-6
    assert cycles[0] <= cycles[1] + cycles[2] + spilled + 1e-6


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet50", 25.50), ("vgg16", 138.34), ("mobilenet", 4.21), ("bert-base", 85.5)],
)
def test_static_networks_have_the_published_size(name: str, millions: float) -> None:
    """Weights without biases and normalisation (BERT: without embeddings), in millions."""
    assert NETWORKS[name]().weights() / 1e6 == pytest.approx(millions, rel=0.01)


def test_translation_reads_its_weights_in_every_step() -> None:
    """One more decoding step of the Transformer reads 6 x 3.67 M + 18.9 M weights more and adds three nodes."""
    short, long = transformer.build(18, 10), transformer.build(18, 11)
    assert len(long.nodes) - len(short.nodes) == 3
    # six layers: 4 + 2 + 8 squares of 512 (keys and values of the source are made once)
    assert long.weights() - short.weights() == 6 * 14 * 512 * 512 + 512 * 37000
    assert long.lengths == {"encoder": 18, "decoder": 11}


def test_every_network_is_reasonable() -> None:
    """At most 200 nodes, names unique, times that grow with the batch, and a provenance that says simulated."""
    for name, build in NETWORKS.items():
        table = latency_table(build())
        assert table.model == name
        assert len(set(table.nodes)) == len(table.nodes) <= 200
        assert all(list(times) == sorted(times) for times in table.median_ns)
        assert table.provenance["simulated"] is True


def test_single_batch_latencies_are_near_the_papers() -> None:
    """Within 10 % for ResNet and Transformer, within 30 % for GNMT; the command prints the exact errors."""
    limits = {"resnet50": 0.10, "transformer": 0.10, "gnmt": 0.30}
    for name, paper_ms in PAPER_MS.items():
        ours_ms = latency_table(NETWORKS[name]()).whole_ns(1) / 1e6
        assert abs(ours_ms / paper_ms - 1) <= limits[name], f"{name}: {ours_ms:.2f} ms, paper {paper_ms} ms"


def test_batching_saturates_where_the_paper_says() -> None:
    """ResNet gains about twice its throughput, and little beyond a batch of 16 (Fig. 3)."""
    table = latency_table(NETWORKS["resnet50"]())
    rate = {rows: rows / table.whole_ns(rows) for rows in (1, 16, 64)}
    assert rate[16] > 1.8 * rate[1]
    assert rate[64] < 1.1 * rate[16]


def test_chunks_cover_the_length() -> None:
    """Parts sum to the length and none is longer than asked."""
    assert chunks(18, 6) == [6, 6, 6]
    assert chunks(19, 6) == [6, 6, 6, 1]


def test_the_command_writes_tables_that_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All seven files load, equal to what is computed, and the calibration is printed."""
    assert main(["-o", str(tmp_path / "npu")]) == 0
    for name, build in NETWORKS.items():
        assert load(tmp_path / "npu" / f"{name}.json").median_ns == latency_table(build()).median_ns
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert next(line for line in lines if line.startswith("transformer")).endswith("%")


def test_the_command_refuses_a_file_as_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One clear line and exit code 2."""
    (tmp_path / "file").write_text("")
    assert main(["-o", str(tmp_path / "file")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_committed_tables_are_current() -> None:
    """The tables under profiles/ are what the formulas give today."""
    folder = Path(__file__).resolve().parents[2] / "profiles" / "npu-128x128"
    for name, build in NETWORKS.items():
        committed, fresh = load(folder / f"{name}.json"), latency_table(build())
        assert (committed.nodes, committed.median_ns) == (fresh.nodes, fresh.median_ns), name
