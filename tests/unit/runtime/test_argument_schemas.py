"""Schemas of tools, and checks of arguments."""

from typing import Any

import pytest
from spawnmesh_runtime.argument_schemas import (
    ArgumentCheck,
    UnusableSchema,
    inline_schema,
)


def objects(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_references_are_inlined_and_unneeded_keywords_dropped() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "x",
        **objects(
            a={"$ref": "#/$defs/a~1b", "description": "mine"},
            b={"type": "array", "items": {"$ref": "#/$defs/a~1b"}},
        ),
        "$defs": {"a/b": {"type": "string", "description": "theirs"}},
    }
    assert inline_schema(schema) == objects(
        a={"type": "string", "description": "mine"},
        b={"type": "array", "items": {"type": "string", "description": "theirs"}},
    )


def test_arguments_may_have_the_names_of_keywords() -> None:
    schema = objects(
        **{"$id": {"type": "string"}, "$ref": {"type": "string"}, "definitions": {"type": "integer"}}
    )
    assert inline_schema(schema) == schema
    assert ArgumentCheck(inline_schema(schema)).problems({"definitions": "one"})


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "array"},
        objects(a={"type": 4}),
        objects(a={"required": "b"}),
        objects(a={"const": float("nan")}),
    ],
)
def test_a_schema_of_no_object_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchema):
        inline_schema(schema)


def test_arguments_are_checked_without_repeating_values() -> None:
    check = ArgumentCheck(
        {
            **objects(a={"type": "integer", "maximum": 3}, b={"enum": ["x", "y"]}),
            "required": ["a"],
            "additionalProperties": False,
        }
    )
    assert check.problems({"a": 3, "b": "x"}) == []
    text = "; ".join(check.problems({"a": 4, "b": "sesame", "c": "sesame"}))
    assert "a: does not fit maximum 3" in text
    assert 'b: does not fit enum ["x", "y"]' in text
    assert "c: there is no such argument" in text
    assert "sesame" not in text


def test_additional_arguments_are_checked() -> None:
    check = ArgumentCheck({**objects(a={}), "additionalProperties": {"type": "integer"}})
    assert check.problems({"a": "x", "b": 1}) == []
    assert check.problems({"b": "x"}) == ['b: does not fit type "integer"']


@pytest.mark.parametrize("arguments", [None, [], "x", 4])
def test_arguments_are_an_object(arguments: object) -> None:
    assert ArgumentCheck(objects()).problems(arguments) == ["the arguments are not an object"]
