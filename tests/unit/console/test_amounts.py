"""Sizes and counts in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.amounts import aligned_cost, counted, exact_size_text, percent_text, size_text

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_500_000, "1.4 MiB"),
        (123 * 2**20, "123 MiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_a_size_has_three_digits(count: int, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (8000, "8,000 B"),
        (1_500_000, "1,500,000 B"),
        (5 * 2**20, "5 MiB"),
        (100 * 2**30, "100 GiB"),
    ],
)
def test_a_size_of_a_setting_is_exact(count: int, text: str) -> None:
    assert exact_size_text(count) == text


@given(st.integers(min_value=0, max_value=2**60))
def test_an_exact_size_can_be_read_back(count: int) -> None:
    number, unit = exact_size_text(count).split(" ")
    assert int(number.replace(",", "")) * UNITS[unit] == count


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "–"),
        (0, 9, "–"),
        (1, 0, "–"),
        (1, 1000, "< 1 %"),
        (1, 3, "33 %"),
        (999, 1000, "99 %"),
        (5, 5, "100 %"),
    ],
)
def test_a_share_is_rounded_down(part: int, whole: int, text: str) -> None:
    assert percent_text(part, whole) == text


def test_one_thing_has_another_noun() -> None:
    assert [counted(number, "entry", "entries") for number in (0, 1, 1200)] == [
        "0 entries",
        "1 entry",
        "1,200 entries",
    ]


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0.0000"),
        (1, "< 0.0001"),
        (99, "< 0.0001"),
        (100, "0.0001"),
        (7_641, "0.0076"),
        (1_234_500_000, "1,234.5000"),
    ],
)
def test_costs_of_a_column_have_four_decimals(micros: int, text: str) -> None:
    assert aligned_cost(micros) == text
