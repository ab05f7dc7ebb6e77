"""The models with loops: torch against hand-written maths, files against torch, evaluations against each other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from graphs import gnmt, las, transformer
from graphs.__main__ import main
from graphs.export import ExportError
from graphs.plans import plan
from graphs.programs import LENGTHS_FILE, build_stages, compare_program, ensure_program, export_program, torch_program
from graphs.recurrent import SequenceLstm, lstm
from graphs.reference import Reference
from graphs.sizes import END, FULL, TINY, Row, requests
from lazybatch.program import Feed
from lazybatch.program.file import load_program

PARAMETERS = [
    (gnmt.Encoder, "gnmt", 113_583_104),
    (gnmt.Decoder, "gnmt", 167_313_664),
    (transformer.Encoder, "transformer", 41_010_176),
    (transformer.Decoder, "transformer", 41_053_320),
    (las.Listener, "las", 8_749_568),
    (las.Speller, "las", 5_555_742),
]
"""Counted by hand from the papers' widths: matrices, biases, embeddings and normalisations."""


def test_the_sequence_operator_is_torchs_lstm() -> None:
    """Rows of unequal lengths: forward as torch's own LSTM computes each alone, backward as it does on the reversed."""
    torch.manual_seed(0)
    own = torch.nn.LSTM(5, 4, batch_first=True)
    into, forget, cell, out = (slice(4 * k, 4 * k + 4) for k in range(4))  # torch's order of the gates
    order = torch.cat([torch.arange(16)[part] for part in (into, out, forget, cell)])
    w, r = own.weight_ih_l0[order][None], own.weight_hh_l0[order][None]
    b = torch.cat([own.bias_ih_l0[order], own.bias_hh_l0[order]])[None]
    x, lengths = torch.randn(3, 6, 5), torch.tensor([6, 1, 4])
    with torch.no_grad():
        ahead, back = (lstm(x, lengths, w, r, b, 4, reverse) for reverse in (False, True))
        for row, length in enumerate(lengths.tolist()):
            whole = x[row : row + 1, :length]
            torch.testing.assert_close(ahead[row : row + 1, :length], own(whole)[0])
            torch.testing.assert_close(back[row : row + 1, :length], own(whole.flip(1))[0].flip(1))
            assert not ahead[row, length:].any()
            assert not back[row, length:].any()


def test_padding_is_not_heard() -> None:
    """What lies beyond a row's length changes nothing of what is within it, in any encoder."""
    for name, size in TINY.items():
        part = plan(name, size).parts[0]
        module = build_stages(name, size)[part.name]
        inputs = part.examples(2, seed=3)
        source = next(iter(inputs))
        inputs["length"] = np.array([size.source_max // 2 - 3, size.source_max // 2], dtype=np.int64)
        other = dict(inputs)
        other[source] = inputs[source].copy()
        other[source][:, size.source_max // 2 :] = part.examples(2, seed=4)[source][:, size.source_max // 2 :]
        with torch.no_grad():
            one, two = (module(*(torch.from_numpy(array) for array in given.values())) for given in (inputs, other))
        for first, second in zip(one, two, strict=True):
            if name == "transformer":  # keys have positions last, values before the last axis
                axis = 3 if first.shape[3] == size.source_max else 2
                first, second = (tensor.narrow(axis, 0, size.source_max // 2) for tensor in (first, second))
            else:
                first, second = (
                    tensor[:, : (size.source_max // 2) >> getattr(size, "pyramid", 0)] for tensor in (first, second)
                )
            torch.testing.assert_close(first, second)


@pytest.mark.parametrize("name", TINY)
def test_files_compute_what_torch_computes(tiny_zoo: Path, name: str) -> None:
    """Every stage, on rows it was not exported with; other weights are noticed."""
    path = tiny_zoo / name / "program.json"
    assert ensure_program(name, tiny_zoo) == path
    for rows in (1, 5):
        compare_program(name, path, size=TINY[name], rows=rows)
    with pytest.raises(ExportError, match="differs from torch"):
        compare_program(name, path, size=TINY[name], seed=1)


@pytest.mark.parametrize("name", TINY)
def test_descriptions_can_be_read(tiny_zoo: Path, name: str) -> None:
    """The file says what the plan says; examples have every input of every stage; lengths are pairs."""
    program = load_program(tiny_zoo / name)
    made = plan(name, TINY[name])
    assert program.outputs == made.outputs
    for stage, part in zip(program.stages, made.parts, strict=True):
        wanted = {key: Feed(feed) if isinstance(feed, str) else feed for key, feed in part.feeds.items()}
        assert (stage.name, stage.feeds) == (part.name, wanted)
        assert (stage.loop is None) == (part.loop is None)
        with np.load(stage.examples) as examples:
            assert set(examples.files) == set(part.inputs)
    lines = (tiny_zoo / name / LENGTHS_FILE).read_text().splitlines()
    assert lines[0] == "input,output"
    assert len(lines) == 2001


@pytest.mark.parametrize("name", TINY)
def test_a_batch_decodes_what_its_rows_do(tiny_zoo: Path, name: str) -> None:
    """Rows of different lengths, one at a time and as one padded batch: the same tokens, END at the asked step."""
    evaluate = Reference(tiny_zoo / name, TINY[name])
    rows = requests(TINY[name], 9, seed=7)
    alone = [evaluate([row])[0] for row in rows]
    for row, tokens, other in zip(rows, alone, evaluate(rows), strict=True):
        assert len(tokens) == int(row["target_length"])
        assert tokens[-1] == END
        assert END not in tokens[:-1]
        assert np.array_equal(tokens, other)
    assert len({tuple(tokens[:2]) for tokens in alone}) > 1


@pytest.mark.parametrize("name", TINY)
def test_decoding_is_what_torch_decodes(tiny_zoo: Path, name: str) -> None:
    """A loop over the torch modules gives the same tokens as the files do."""
    size, rows = TINY[name], requests(TINY[name], 2, seed=11)
    evaluate = Reference(tiny_zoo / name, size)
    for row in rows:
        assert np.array_equal(evaluate([row])[0], _decoded(name, row))


def _decoded(name: str, row: Row) -> np.ndarray:
    """Token by token with the torch modules, following the plan."""
    size = TINY[name]
    first, second = plan(name, size).parts
    modules = build_stages(name, size)
    key = next(iter(row))
    padded = np.zeros((1, size.source_max, *row[key].shape[1:]), row[key].dtype)
    padded[0, : len(row[key])] = row[key]
    length = torch.tensor([len(row[key])])
    with torch.no_grad():
        seen = dict(zip(first.outputs, modules[first.name](torch.from_numpy(padded), length), strict=True))
        given = {name: torch.zeros(1, *port.shape) for name, port in second.inputs.items()}
        given |= seen | {"length": length, "target_length": torch.tensor([int(row["target_length"])])}
        given["token"] = torch.tensor([1])
        tokens = []
        for position in range(size.target_max):
            given["position"] = torch.tensor([position])
            answer = modules[second.name](*(given[name] for name in second.inputs))
            made = dict(zip(second.outputs, answer, strict=True))
            tokens.append(int(made["token_next"]))
            if bool(made["finished"]):
                break
            for name, tensor in made.items():
                if name.endswith("_next"):
                    given[name.removesuffix("_next")] = tensor
                elif name.startswith("key"):
                    given[f"keys{name[3:]}"][..., position] = tensor
                elif name.startswith("value"):
                    given[f"values{name[5:]}"][:, :, position] = tensor
    return np.array(tokens)


def test_torch_programs_are_described_too() -> None:
    """The same stages with modules that take and give tensors by name."""
    for name, size in TINY.items():
        program = torch_program(name, size=size)
        for stage, part in zip(program.stages, plan(name, size).parts, strict=True):
            with torch.no_grad():
                answer = stage.model(**{key: torch.from_numpy(array) for key, array in stage.examples.items()})
            assert tuple(answer) == part.outputs


def test_same_seed_same_weights() -> None:
    """A seed names one set of weights; another seed gives others, and stages differ from each other."""
    for name, size in TINY.items():
        first, again, other = (build_stages(name, size, seed) for seed in (3, 3, 4))
        for stage in first:
            one, two, three = (
                torch.cat([p.flatten() for p in made[stage].parameters()]) for made in (first, again, other)
            )
            assert torch.equal(one, two)
            assert not torch.equal(one, three)
    assert isinstance(build_stages("gnmt", TINY["gnmt"])["encoder"].first.back, SequenceLstm)


def test_export_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command writes the folder, and says per stage how far it is from torch."""
    assert main(["export", "--model", "las", "--tiny", "-o", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["file"] == str(tmp_path / "las" / "program.json")
    assert {name: stage["relative_difference_from_torch"] < 1e-4 for name, stage in report["stages"].items()} == {
        "listener": True,
        "speller": True,
    }
    assert {path.name for path in (tmp_path / "las").iterdir()} == {
        *("listener.onnx", "listener.npz", "speller.onnx", "speller.npz", "program.json", "lengths.csv")
    }
    assert main(["list"]) == 0
    assert "gnmt" in capsys.readouterr().out


@pytest.mark.parametrize(("module", "name", "count"), PARAMETERS)
def test_sizes_as_published(module: type[torch.nn.Module], name: str, count: int) -> None:
    """The full models have the number of parameters that the papers' widths give."""
    with torch.device("meta"):
        assert sum(p.numel() for p in module(FULL[name]).parameters()) == count


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_full_files_compute_what_torch_computes(tmp_path: Path, name: str) -> None:
    """The same check as of the tiny ones, on the models as published."""
    compare_program(name, export_program(name, tmp_path))
