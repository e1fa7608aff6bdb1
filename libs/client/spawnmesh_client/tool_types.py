"""The types of a tool's parameters: their JSON Schema, and the values that a model gives for them.

Supported are `str`, `int`, `float`, `bool`, `Any`, `Literal` and `Enum`, `list[T]`, `dict[str, T]`,
`T | None`, dataclasses and `TypedDict`, also within each other, and `Annotated[T, "what it is"]`,
which describes it for the model.
"""

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Schema = dict[str, Any]

_SCALARS: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_NOUNS: Mapping[Any, str] = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


class ValueRefused(Exception):
    """A value is not of its type. The text says where and why, and never the value."""


def schema_of(kind: Any) -> Schema:
    """Return the JSON Schema of a type. Raises TypeError for a type that is not supported."""
    if kind is Any:
        return {}
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        texts = [one for one in arguments[1:] if isinstance(one, str)]
        return schema_of(arguments[0]) | ({"description": " ".join(texts)} if texts else {})
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(one) for one in arguments]}
    if kind is types.NoneType:
        return {"type": "null"}
    if (choices := _choices(kind)) is not None:
        return {"enum": choices}
    if kind is list or origin is list:
        return {"type": "array"} | ({"items": schema_of(arguments[0])} if arguments else {})
    if kind is dict or origin is dict:
        if arguments and arguments[0] is not str:
            raise TypeError(f"the keys of {kind} are not texts")
        return {"type": "object"} | ({"additionalProperties": schema_of(arguments[1])} if arguments else {})
    if (members := members_of(kind)) is not None:
        return object_schema(members)
    raise TypeError(f"{kind!r} is no type for a parameter of a tool; give the tool its own schema")


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A parameter of a tool, or a field of an object."""

    kind: Any
    is_required: bool
    description: str = ""


def object_schema(members: Mapping[str, Member]) -> Schema:
    """Return the schema of an object with these members and no others."""
    properties = {}
    for name, member in members.items():
        described = {"description": member.description} if member.description else {}
        properties[name] = schema_of(member.kind) | described
    required = [name for name, member in members.items() if member.is_required]
    return {
        "type": "object", "properties": properties, "required": required, "additionalProperties": False,
    }  # fmt: skip


def members_of(kind: Any) -> dict[str, Member] | None:
    """Return the fields of a dataclass or a TypedDict; None for any other type."""
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {name: Member(_plain(hint), name in kind.__required_keys__) for name, hint in hints.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind, include_extras=True)
        return {
            one.name: Member(hints[one.name], _is_required(one))
            for one in dataclasses.fields(kind)
            if one.init
        }
    return None


def read_object(members: Mapping[str, Member], given: object, place: str = "") -> dict[str, Any]:
    """Return the members that are given, as their types. Raises ValueRefused."""
    if not isinstance(given, dict):
        raise ValueRefused(f"{place or 'arguments'}: must be an object")
    before = f"{place}." if place else ""
    for name in given:
        if name not in members:
            raise ValueRefused(f"{before}{name}: there is no such parameter")
    for name, member in members.items():
        if member.is_required and name not in given:
            raise ValueRefused(f"{before}{name}: is missing")
    return {name: read_value(members[name].kind, value, f"{before}{name}") for name, value in given.items()}


def read_value(kind: Any, given: Any, place: str) -> Any:
    """Return the value of parsed JSON as a value of the type. Raises ValueRefused."""
    if kind is Any:
        return given
    if kind in _SCALARS:
        return _scalar(kind, given, place)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return read_value(arguments[0], given, place)
    if origin in (Union, types.UnionType):
        return _one_of(arguments, given, place)
    if kind is types.NoneType:
        if given is not None:
            raise ValueRefused(f"{place}: must be null")
        return None
    if (choices := _choices(kind)) is not None:
        if not any(given == one and type(given) is type(one) for one in choices):
            raise ValueRefused(f"{place}: must be one of {', '.join(map(repr, choices))}")
        return kind(given) if isinstance(kind, type) else given
    if kind is list or origin is list:
        if not isinstance(given, list):
            raise ValueRefused(f"{place}: must be a list")
        item = arguments[0] if arguments else Any
        return [read_value(item, one, f"{place}.{number}") for number, one in enumerate(given)]
    if kind is dict or origin is dict:
        if not isinstance(given, dict):
            raise ValueRefused(f"{place}: must be an object")
        item = arguments[1] if arguments else Any
        return {name: read_value(item, one, f"{place}.{name}") for name, one in given.items()}
    return kind(**read_object(members_of(kind) or {}, given, place))


def _scalar(kind: Any, given: Any, place: str) -> Any:
    if kind is int and isinstance(given, float) and given.is_integer():
        return int(given)
    if kind is float and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    if not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool):
        raise ValueRefused(f"{place}: must be {_NOUNS[kind]}")
    return given


def _one_of(kinds: tuple[Any, ...], given: Any, place: str) -> Any:
    refused: list[str] = []
    for kind in kinds:
        try:
            return read_value(kind, given, place)
        except ValueRefused as error:
            refused.append(str(error))
    raise ValueRefused(" or ".join(dict.fromkeys(refused)))


def _choices(kind: Any) -> list[Any] | None:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [one.value for one in kind]
    return None


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing
