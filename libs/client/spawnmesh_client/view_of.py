"""Views of messages: frozen dataclasses whose fields are named as those of the message."""

import dataclasses
import types
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

T = TypeVar("T")


class Word(StrEnum):
    """A value of an enum of the contracts, by its name without the name of the enum.

    Each subclass has `UNKNOWN`, for a value that a newer service sends.
    """

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[str]) -> str:
        return name


def view_of(kind: type[T], message: Message, /, **given: Any) -> T:
    """Return the view of the message. `given` has the fields that the message does not have.

    Times are in UTC. A field whose type allows None is None if the message leaves it out.
    """
    values = {
        name: _value(hint, message, name)
        for name, hint in _hints(cast(Any, kind)).items()
        if name not in given
    }
    return kind(**values, **given)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in dataclasses.fields(kind) if not one.name.startswith("_")}


def _value(hint: Any, message: Message, name: str) -> Any:
    descriptor = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
        if not (message.HasField(name) if descriptor.message_type is not None else value):
            return None
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return tuple(_converted(item, one, descriptor) for one in value)
    if get_origin(hint) is Mapping:
        return types.MappingProxyType(dict(value))
    return _converted(hint, value, descriptor)


def _converted(hint: Any, value: Any, descriptor: Any) -> Any:
    if hint is datetime:
        return value.ToDatetime(UTC)
    if hint is timedelta:
        return value.ToTimedelta()
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return view_of(hint, value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return word_of(hint, value, descriptor.enum_type)
    return value


def word_of(kind: type[Any], number: int, enum: Any) -> Any:
    """Return the word of a number of an enum's descriptor."""
    known = enum.values_by_number.get(number)
    name = "" if known is None else known.name.removeprefix(enum_prefix(enum))
    return kind.__members__.get(name, kind.UNKNOWN)


def number_of(word: str, enum: Any) -> int:
    """Return the number of a word, such as `SESSION` of SessionMode; 0 for an empty one.

    Raises ValueError for a word that the enum does not have.
    """
    if not word:
        return 0
    known = enum.values_by_name.get(enum_prefix(enum) + word.upper())
    if known is None or known.number == 0:
        words = [one.name.removeprefix(enum_prefix(enum)) for one in enum.values if one.number]
        raise ValueError(f"{word!r} is no {enum.name}; it is one of {', '.join(words)}")
    return int(known.number)


def duration_of(seconds: float) -> Duration:
    """Return the message of a duration."""
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=seconds))
    return duration


@cache
def enum_prefix(enum: Any) -> str:
    """Return what the names of the enum's values begin with, such as `RUN_STATE_`."""
    return str(enum.values_by_number[0].name).removesuffix("UNSPECIFIED")
