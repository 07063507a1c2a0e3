# SPDX-License-Identifier: MIT
"""Quantities: values that the API server of Kubernetes 1.36 accepts and returns, and bad ones."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgpu_kube import quantity
from cgpu_kube.errors import BadQuantity

GOOD = [
    ("6Gi", 6 << 30),
    ("1536Mi", 1536 << 20),
    ("15109Mi", 15109 << 20),
    ("1.5Gi", 1536 << 20),
    ("0", 0),
    ("-1Gi", -(1 << 30)),
    ("500m", Fraction(1, 2)),
    ("1e3", 1000),
    ("1E3", 1000),
    ("2E", 2 * 10**18),
    ("2Ei", 2 << 60),
    ("12k", 12000),
    (".5", Fraction(1, 2)),
    ("5.", 5),
    ("+1", 1),
    (6, 6),
]


@pytest.mark.parametrize(("text", "value"), GOOD, ids=str)
def test_good(text: object, value: Fraction) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " 6Gi", "6Gi\n", "6 Gi", "Gi", "6GiB", "6gi", "0x6", "1e99", "1e+", "٦", "6" * 65, "NaN", None, True, 1.5],
    ids=str,
)
def test_bad(text: object) -> None:
    with pytest.raises(BadQuantity, match=r"quantity|exponent"):
        quantity.parse(text)


@pytest.mark.parametrize(("text", "value"), [("6", 6), ("6k", 6000), ("0", 0), ("6000m", 6)])
def test_whole(text: str, value: int) -> None:
    assert quantity.whole(text) == value


@pytest.mark.parametrize("text", ["-1", "1500m", "0.5"])
def test_not_whole(text: str) -> None:
    with pytest.raises(BadQuantity, match="whole number"):
        quantity.whole(text)


@pytest.mark.parametrize(("text", "value"), [("6Gi", 6144), ("1500Ki", 2), ("1", 1), ("1G", 954)])
def test_mib_rounds_up(text: str, value: int) -> None:
    assert quantity.mib(text) == value


@pytest.mark.parametrize("text", ["0", "-1Gi", "0Mi"])
def test_no_memory(text: str) -> None:
    with pytest.raises(BadQuantity, match="above 0"):
        quantity.mib(text)


@given(st.integers(0, 1 << 40))
def test_the_canonical_form_is_the_same_amount(value: int) -> None:
    assert quantity.parse(quantity.of_mib(value)) == value * quantity.MIB


@given(st.text(max_size=80))
def test_any_text_is_a_quantity_or_a_sentence(text: str) -> None:
    try:
        quantity.parse(text)
    except BadQuantity as error:
        assert "\n" not in str(error).strip("\n") or "\n" in text
