"""Tools of a worker: their schemas, and the arguments that models give them."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.tools import CurrentCall, Tool, ToolError, by_name, tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    city: str
    country: str = "FR"


class Options(TypedDict):
    unit: Literal["celsius", "fahrenheit"]
    note: NotRequired[str]


def forecast(
    city: Annotated[str, "the name of the city"],
    days: int = 1,
    places: list[Place] | None = None,
    options: Options | None = None,
    colour: Colour = Colour.RED,
    limits: dict[str, float] | None = None,
    anything: Any = None,
) -> str:
    """Return the weather.

    It may rain.

    Args:
        days: how many days,
            from today on
        colour (optional): of the chart

    Returns: a text.
    """
    return json.dumps([city, days, str(places), options, colour.value, limits, anything])


def test_schema_is_that_of_the_signature_and_the_docstring() -> None:
    made = tool(forecast)
    assert (made.name, made.idempotent) == ("forecast", False)
    assert made.description == "Return the weather.\n\nIt may rain.\n\nReturns: a text."
    assert made.parameters["required"] == ["city"]
    assert made.parameters["additionalProperties"] is False
    properties = made.parameters["properties"]
    assert properties["city"] == {"type": "string", "description": "the name of the city"}
    assert properties["days"] == {"type": "integer", "description": "how many days, from today on"}
    assert properties["colour"] == {"enum": ["red", "blue"], "description": "of the chart"}
    place = properties["places"]["anyOf"][0]["items"]
    assert (place["required"], place["properties"]["country"]) == (["city"], {"type": "string"})
    options = properties["options"]["anyOf"][0]
    assert options["required"] == ["unit"]
    assert options["properties"]["unit"] == {"enum": ["celsius", "fahrenheit"]}
    assert properties["limits"]["anyOf"][0] == {
        "type": "object", "additionalProperties": {"type": "number"},
    }  # fmt: skip
    assert json.loads(made.declaration.parameters_json) == made.parameters


async def test_arguments_arrive_as_their_types() -> None:
    given = {
        "city": "Paris", "days": 2.0, "places": [{"city": "Rome"}], "options": {"unit": "celsius"},
        "colour": "blue", "limits": {"max": 30}, "anything": [1, None],
    }  # fmt: skip
    assert json.loads(await called(tool(forecast), given)) == [
        "Paris", 2, "[Place(city='Rome', country='FR')]", {"unit": "celsius"}, "blue", {"max": 30.0}, [1, None],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({}, "city: is missing"),
        ([], "arguments: must be an object"),
        ({"city": 1}, "city: must be a text"),
        ({"city": "x", "town": "y"}, "town: there is no such parameter"),
        ({"city": "x", "days": True}, "days: must be an integer"),
        ({"city": "x", "days": 1.5}, "days: must be an integer"),
        ({"city": "x", "days": None}, "days: must be an integer"),
        ({"city": "x", "colour": "green"}, "colour: must be one of 'red', 'blue'"),
        ({"city": "x", "places": [{"town": "y"}]}, "places.0.town: there is no such parameter"),
        ({"city": "x", "limits": {"max": "30"}}, "limits.max: must be a number"),
        (
            {"city": "x", "options": {"unit": "kelvin"}},
            "options.unit: must be one of 'celsius', 'fahrenheit'",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_place(given: object, refusal: str) -> None:
    with pytest.raises(ToolError) as refused:
        tool(forecast).read(given)
    assert refused.value.reason == "INVALID_ARGUMENTS"
    assert refusal in str(refused.value)


async def test_tool_with_a_schema_of_its_own_gets_the_arguments_as_they_are() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}

    @tool(name="add-one", description="Add one.", parameters=schema, idempotent=True)
    def add(a, *, call: CurrentCall):  # type: ignore[no-untyped-def]
        return {"sum": a + 1, "call": call.tool_call_id}

    assert (add.name, add.description, add.parameters, add.idempotent) == (
        "add-one",
        "Add one.",
        schema,
        True,
    )
    assert json.loads(await called(add, {"a": 1})) == {"sum": 2, "call": "call_1"}
    with pytest.raises(ToolError, match="INVALID_ARGUMENTS: missing a required argument: 'a'"):
        add.read({})


async def test_results_become_text() -> None:
    async def nothing() -> None:
        """Do nothing."""

    def place() -> list[Place]:
        """Return a place."""
        return [Place("Zürich", "CH")]

    assert await called(tool(nothing), {}) == "done"
    assert await called(tool(place), {}) == '[{"city": "Zürich", "country": "CH"}]'


def test_functions_that_are_no_tools_are_refused() -> None:
    with pytest.raises(TypeError, match="no type"):
        tool(lambda a: a, name="untyped")
    with pytest.raises(TypeError, match="is no type for a parameter"):
        tool(_with_bytes)
    with pytest.raises(ValueError, match="is no name for a tool"):
        tool(lambda: 1)
    with pytest.raises(ValueError, match="two tools have the name forecast"):
        by_name([tool(forecast), tool(forecast)])


def _with_bytes(data: bytes) -> None:
    """Take bytes."""


async def called(made: Tool, given: object) -> str:
    run: Any = RunContext
    return await made.call(made.read(given), CurrentCall(run, "call_1", "request"))
