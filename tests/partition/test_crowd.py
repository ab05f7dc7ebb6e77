"""What three ordinary rows do not show: effects of many rows, and indices that reach into another row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.partition.parts import cut

AT = "<int64[1] zero = {0}, int64[1] eight = {8}, int64[1] one = {1}, int64[1] twelve = {12}>"
HEAD = f"g (float[N,4] x) => (float[N,4] y) {AT} {{ s = Shape(x) n = Gather(s, zero) "
LATE = {
    "a sign": "d = Sub(n, eight) o = Sign(d) f = Cast<to=1>(o) y = Add(x, f)",
    "a slice that ends earlier": "e = Sub(twelve, n) b = Slice(x, zero, e, one) r = ReduceSum(b, one) y = Add(x, r)",
    "a number that no longer fits": """k = Constant<value = int64[1] {30}>() m = Mul(n, k) c = Cast<to=3>(m)
        f = Cast<to=1>(c) z = Constant<value = float {0.0}>() l = Less(f, z) o = Cast<to=1>(l) y = Add(x, o)""",
    "every fourth row": """i = Constant<value = int64 {0}>() k = Constant<value = int64 {4}>() m = Squeeze(n)
        r = Range(i, m, k) t = ReduceSum(r) f = Cast<to=1>(t) y = Add(x, f)""",
}


@pytest.mark.parametrize("name", LATE)
def test_an_effect_of_many_rows_is_found(name: str, tmp_path: Path) -> None:
    """Numbers computed from the batch size that three rows leave without effect, and a full batch does not."""
    partition = cut(HEAD + LATE[name] + " }", tmp_path)
    assert not partition.joinable
    assert partition.reason is not None
    assert "33 rows" in partition.reason or "steers by the number of rows" in partition.reason


def test_a_table_as_long_as_the_rows_are_few_is_found(tmp_path: Path) -> None:
    """Positions down the batch looked up in a table of 20: the 21st row has none."""
    text = """g (float[N,4] x) => (float[N,4] y) <int64[1] zero = {0}, int64[1] twenty = {20}>
        { t = ConstantOfShape<value = float[1] {0.0}>(twenty) s = Shape(x) n = Gather(s, zero) g = Gather(t, n)
        y = Add(x, g) }"""
    partition = cut(text, tmp_path)
    assert not partition.joinable
    assert partition.reason is not None
    assert "many rows together fail where each alone works" in partition.reason


PICKED = """g (float[N,T,4] x, int64[N] at) => (float[N,4] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64 z = {0}, int64 o = {1}, int64[2] flat = {-1,4}>
    { s = Shape(x) n = Gather(s, zero) n0 = Squeeze(n) t = Gather(s, one) r = Range(z, n0, o) b = Mul(r, t)
    f = Reshape(x, flat) """


def test_an_index_that_reaches_into_the_next_row_is_found(tmp_path: Path) -> None:
    """A token picked from all rows laid end to end: an index one too large is an error alone, in company a leak."""
    partition = cut(PICKED + "i = Add(b, at) y = Gather(f, i) }", tmp_path)
    assert not partition.joinable
    assert partition.reason is not None
    assert "input 'at'" in partition.reason


def test_an_index_kept_within_its_row_may_join(tmp_path: Path) -> None:
    """The same pick with a remainder in front reaches over to nobody."""
    partition = cut(PICKED + "m = Mod(at, t) i = Add(b, m) y = Gather(f, i) }", tmp_path)
    assert partition.joinable, partition.reason
