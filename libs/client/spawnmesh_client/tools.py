"""Tools of a worker: functions that the models of a run may call.

async def forecast(city: str, days: int = 1) -> list[str]:
    '''Return the weather of the next days.

    Args:
        city: The name of the city, in English.
    '''

answer = await ctx.run_tools([forecast])
"""

import asyncio
import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints, overload

from spawnmesh.model_router.v1.generation_pb2 import ToolDeclaration

from spawnmesh_client.tool_types import Member, Schema, ValueRefused, object_schema, read_object

if TYPE_CHECKING:  # The context of a run has the tools.
    from spawnmesh_client.run_context import RunContext

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ARGUMENTS = re.compile(r"^(?:Args|Arguments|Parameters):[ ]*$", re.MULTILINE)
_ARGUMENT = re.compile(r"[ ]+(\w+)(?:[ ]*\([^)]*\))?:[ ]*(.*)")
_NOTHING = "done"


class ToolError(Exception):
    """A tool cannot do what a call wants. The model reads the text, and goes on.

    `reason` is a word in capitals in front of the text.
    """

    def __init__(self, message: str, *, reason: str = "TOOL_ERROR") -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CurrentCall:
    """The call that a tool works on. A parameter of this type is not shown to the model.

    `request_id` is the same if the call is made again after a crash: pass it to what must happen
    once, such as `run.spawn(task, request_id=call.request_id)`.
    """

    run: "RunContext" = field(repr=False)
    tool_call_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    `parameters` is the JSON Schema of its arguments. If it is `idempotent`, a call is made again
    after a crash of its worker; otherwise the model reads that its outcome is unknown.
    """

    name: str
    description: str
    parameters: Schema
    function: Callable[..., Any]
    idempotent: bool = False
    members: Mapping[str, Member] | None = None
    """The parameters by their types. None: the arguments are passed as the model gives them."""
    call_parameter: str = ""
    """The parameter that takes the `CurrentCall`, if there is one."""

    @property
    def declaration(self) -> ToolDeclaration:
        """The tool as the router passes it to models."""
        return ToolDeclaration(
            name=self.name, description=self.description,
            parameters_json=json.dumps(self.parameters), is_idempotent=self.idempotent,
        )  # fmt: skip

    def read(self, arguments: object) -> dict[str, Any]:
        """Return the arguments of a call for the function.

        Raises ToolError INVALID_ARGUMENTS.
        """
        if self.members is not None:
            try:
                return read_object(self.members, arguments)
            except ValueRefused as refused:
                raise ToolError(str(refused), reason="INVALID_ARGUMENTS") from None
        if not isinstance(arguments, dict):
            raise ToolError("must be an object", reason="INVALID_ARGUMENTS")
        given = {**arguments, self.call_parameter: None} if self.call_parameter else arguments
        try:
            inspect.signature(self.function).bind(**given)
        except TypeError as error:
            raise ToolError(str(error), reason="INVALID_ARGUMENTS") from None
        return arguments

    async def call(self, arguments: dict[str, Any], call: CurrentCall) -> str:
        """Call the function with arguments of `read`, and return its result as text.

        A function that is not async runs in a thread of its own.
        """
        given = {**arguments, self.call_parameter: call} if self.call_parameter else arguments
        if inspect.iscoroutinefunction(self.function):
            result = await self.function(**given)
        else:
            result = await asyncio.to_thread(self.function, **given)
            if inspect.isawaitable(result):
                result = await result
        return _text_of(result)


@overload
def tool(
    function: Callable[..., Any],
    *,
    name: str = "",
    description: str = "",
    parameters: Schema | None = None,
    idempotent: bool = False,
) -> Tool: ...


@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    parameters: Schema | None = None,
    idempotent: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str = "",
    description: str = "",
    parameters: Schema | None = None,
    idempotent: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Return the tool of a function. Without a function, return a decorator that does.

    Name, description and parameters are those of the function unless they are given. In its
    docstring, the lines below `Args:` describe the parameters. Raises TypeError for a parameter of
    a type that `tool_types` does not have, and ValueError for a name that models do not accept.
    """
    if function is None:
        return partial(tool, name=name, description=description, parameters=parameters, idempotent=idempotent)
    found = name or getattr(function, "__name__", "")
    if not _NAME.fullmatch(found):
        raise ValueError(f"{found!r} is no name for a tool: give it letters, digits, '_' and '-'")
    said, described = _documented(inspect.getdoc(function) or "")
    members, call_parameter = _members(function, described, is_typed=parameters is None)
    return Tool(
        found,
        description or said,
        object_schema(members) if parameters is None else parameters,
        function,
        idempotent,
        members if parameters is None else None,
        call_parameter,
    )


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return the tools by their names. Raises ValueError for two of one name."""
    found: dict[str, Tool] = {}
    for one in tools:
        if found.setdefault(one.name, one) is not one:
            raise ValueError(f"two tools have the name {one.name}")
    return found


def _members(
    function: Callable[..., Any], described: Mapping[str, str], *, is_typed: bool
) -> tuple[dict[str, Member], str]:
    hints = get_type_hints(function, include_extras=True)
    members: dict[str, Member] = {}
    call_parameter = ""
    for parameter in inspect.signature(function).parameters.values():
        kind = hints.get(parameter.name)
        if kind is CurrentCall:
            call_parameter = parameter.name
            continue
        if not is_typed:
            continue
        if kind is None or parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"the parameter {parameter.name} of {function!r} has no type and name of its own")
        is_required = parameter.default is parameter.empty
        members[parameter.name] = Member(kind, is_required, described.get(parameter.name, ""))
    return members, call_parameter


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """Return the description of a docstring, and those of the parameters."""
    found = _ARGUMENTS.search(text)
    if found is None:
        return text.strip(), {}
    described: dict[str, str] = {}
    name, rest = "", ""
    lines = text[found.end() :].lstrip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    for number, line in enumerate(lines):
        if line.strip() and not line.startswith(" "):
            rest = "\n".join(lines[number:])
            break
        is_deeper = len(line) - len(line.lstrip()) > indent
        if not is_deeper and (begun := _ARGUMENT.fullmatch(line)):
            name = begun[1]
            described[name] = begun[2]
        elif name and line.strip():
            described[name] = f"{described[name]} {line.strip()}".strip()
    return "\n\n".join(filter(None, (text[: found.start()].strip(), rest.strip()))), described


def _text_of(result: Any) -> str:
    if result is None:
        return _NOTHING
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
