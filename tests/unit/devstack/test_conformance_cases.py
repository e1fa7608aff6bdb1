"""Files of cases are read as they are, and what is wrong with one is said."""

import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_devstack.conformance.cases import BadCase, Case, list_of, object_of, read_cases, text_of
from spawnmesh_devstack.conformance.compare import difference, shown
from spawnmesh_devstack.failures import StackError


def test_cases_keep_their_order_and_one_without_an_id_has_its_place(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    file.write_text(
        json.dumps([{"id": "B", "given": {"name": "\ud800"}, "expect": None}, {"given": 1}]),
        encoding="utf-8-sig",
    )
    assert read_cases(file) == [Case("B", {"name": "\ud800"}, None), Case("#2", 1, None)]


@pytest.mark.parametrize("content", ["{}", "[1]", "[", "\x00", "[" * 100_000])
def test_file_that_holds_no_cases_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "cases.json"
    file.write_text(content)
    with pytest.raises(StackError):
        read_cases(file)


def test_file_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"cannot be read: No such file or directory$"):
        read_cases(tmp_path / "none.json")


def test_unknown_member_is_named() -> None:
    with pytest.raises(BadCase, match=r"does not know: 'b\\x1b'"):
        object_of({"a": 1, "b\x1b": 2}, "given", {"a"})


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_what_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(BadCase, match="given is no object"):
        object_of(value, "given")


def test_null_is_an_empty_text_and_a_number_is_none() -> None:
    assert text_of(None, "name") == ""
    with pytest.raises(BadCase, match="name is no string"):
        text_of(3, "name")
    with pytest.raises(BadCase, match="names is no list"):
        list_of("x", "names")


@pytest.mark.parametrize(
    "came",
    [
        {"reason": "B"},
        {},
        {"reason": "A", "files": []},
        {"reason": "A", "files": [{"bytes": 2}]},
        {"reason": "A", "files": [{"bytes": True}]},
        {"reason": "A", "files": [{"bytes": 1}, {"bytes": 1}]},
    ],
    ids=str,
)
def test_every_expected_member_has_to_come(came: dict[str, Any]) -> None:
    expect = {"reason": "A", "files": [{"bytes": 1}]}
    assert difference(expect, came) == f"came {shown(came)}, expected {shown(expect)}"


def test_more_may_come_than_is_expected() -> None:
    assert difference({"files": [{"bytes": 1}]}, {"files": [{"bytes": 1, "name": "a"}], "total": 1}) == ""


@pytest.mark.parametrize("expect", [None, {}, [], "x"])
def test_an_expectation_of_nothing_is_no_case(expect: Any) -> None:
    with pytest.raises(BadCase, match="nothing is expected"):
        difference(expect, {"reason": "A"})


def test_what_is_shown_is_short_and_cannot_act_on_a_terminal() -> None:
    text = shown({"name": "\x1b[2J\u202e" + "x" * 10_000})
    assert text.startswith('{"name": "\\u001b[2J\\u202exx')
    assert len(text) < 700
