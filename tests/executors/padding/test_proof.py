"""The trial of a padding rule: what holds is accepted with its trims, every way of going wrong is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lazybatch as lb
from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.padding.proof import stretched
from tests.padding_models import written

RULE = {"inputs": {"ids": 0}, "to": (4, 8, 16), "mask": "mask"}


def padded(name: str, folder: Path, **rule: Any) -> Any:
    """A model under a rule."""
    return lb.load(written(name, folder), cache=False, pad=lb.Pad(**{**RULE, **rule}))


def test_a_right_rule_holds_and_finds_what_to_trim(tmp_path: Path) -> None:
    """A masked mean: the tokens' length is found, the pooled vector has none, and nothing deviates."""
    model = padded("masked", tmp_path)
    assert model.proof.trim == {"tokens": 0}
    assert model.proof.deviation <= 1e-6
    assert model.proof.compared > 10
    assert padded("masked", tmp_path, trim={"tokens": 0}).proof.trim == {"tokens": 0}


def test_a_mask_that_callers_always_give_needs_no_name(tmp_path: Path) -> None:
    """As one of the inputs it is filled with 0 like the others."""
    model = padded("masked", tmp_path, inputs={"ids": 0, "mask": 0}, mask=None)
    assert model.proof.trim == {"tokens": 0}


@pytest.mark.parametrize(
    ("name", "rule", "said"),
    [
        ("forgetful", {}, r"output 'pooled' of a row of length 1, padded to 4, differs by .* \(allowed: 0.0001\)"),
        ("masked", {"inputs": {"ids": 0}, "mask": None}, "of a length below 16 could be run|cannot be run|differs"),
        ("neighbours", {}, "output 'mixed' of a row of length 1, padded to 4, differs by"),
        ("square", {}, r"output 'scores' .* has the shape \[4, 4\] instead of \[1, 1\]$"),
        ("counting", {}, "output 'positions' of a row of length 1, padded to 4, differs by inf"),
        ("masked", {"trim": {}}, r"output 'tokens' .* its length lies on axis 0: trim=\{'tokens': 0\}"),
        ("masked", {"trim": {"tokens": 1}}, r"its length lies on axis 0: trim=\{'tokens': 0\}"),
        ("masked", {"trim": {"tokens": 0, "pooled": 0}}, r"'pooled' .* like the row itself; there is nothing to trim"),
        ("masked", {"trim": {"nothing": 0}}, "trim names the output 'nothing'; it has 'tokens', 'pooled'"),
        ("masked", {"inputs": {"idz": 0}}, "pad names the input 'idz'; it has 'ids', 'mask'"),
        ("masked", {"inputs": {"ids": 0.5}}, "input 'ids' of type int64 cannot be filled with 0.5"),
        ("masked", {"inputs": {"ids": 60}}, "a row of length 1, padded to 4, cannot be run: node"),
        ("masked", {"axis": 1}, r"input 'ids' has shape \[any\] per row; padding needs axis 1 to be free"),
        ("fixed", {}, r"input 'ids' has shape \[8\] per row; padding needs axis 0 to be free"),
        ("mixing", {}, "rows cannot share a batch, so padding is of no use: "),
    ],
)
def test_wrong_rules_are_refused_with_a_reason(name: str, rule: dict[str, Any], said: str, tmp_path: Path) -> None:
    """The model, what is wrong and, where it can be said, what would be right."""
    with pytest.raises(ModelError, match=said):
        padded(name, tmp_path, **rule)


def test_only_single_networks_can_be_padded(tmp_path: Path) -> None:
    """A callable has length buckets of its own; what is no rule is refused."""
    with pytest.raises(InvalidInput, match="cannot be padded as one"):
        lb.load(lambda rows: rows, pad=lb.Pad(inputs=["x"], to=(8,)))
    with pytest.raises(InvalidInput, match=r"pad must be a lazybatch\.Pad"):
        lb.load(written("masked", tmp_path), pad={"to": 8}, cache=False)  # type: ignore[arg-type]


def test_made_up_rows_are_never_masked_as_a_whole(tmp_path: Path) -> None:
    """Stretched to any length: the named mask is all ones, other zeros and ones begin with a one, the rest repeats."""
    model = lb.load(written("masked", tmp_path), cache=False)
    row = {"ids": [3, 4], "mask": [0, 1]}
    named = stretched(model.partition, lb.Pad(**RULE), row, 5)
    assert named["ids"].tolist() == [3, 4, 3, 4, 3]
    assert named["mask"].tolist() == [1] * 5
    unnamed = stretched(model.partition, lb.Pad(inputs=["ids", "mask"], to=(8,)), row, 3)
    assert unnamed["mask"].tolist() == [1, 1, 0]
