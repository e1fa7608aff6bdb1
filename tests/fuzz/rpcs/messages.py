"""Random messages of any type: values at the boundaries of each field among plausible ones.

Most messages that are random in every field are refused by the first rule. So each message has a
wildness: the part of its values that are random. The others are plausible: the ids of what exists,
small numbers, times of a minute.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_DEPTH = 5
_REMEMBERED = 400
_INT32, _INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_UINT32, _UINT64 = (0, 2**32 - 1), (0, 2**64 - 1)
_RANGES = {
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_SINT32: _INT32,
    FieldDescriptor.TYPE_SFIXED32: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_SINT64: _INT64,
    FieldDescriptor.TYPE_SFIXED64: _INT64,
    FieldDescriptor.TYPE_UINT32: _UINT32,
    FieldDescriptor.TYPE_FIXED32: _UINT32,
    FieldDescriptor.TYPE_UINT64: _UINT64,
    FieldDescriptor.TYPE_FIXED64: _UINT64,
}
_REALS = (0.0, 1.0, -1.0, 0.5, float("inf"), float("-inf"), float("nan"), 1e308, 5e-324)
_TEXTS = (
    *(
        "",
        " ",
        "a",
        "*",
        "%",
        "'; drop table runs; --",
        "../../etc/passwd",
        "a/b",
        "a\\b",
        "-1",
        "null",
        "{}",
    ),
    *("[]", '{"a":' * 200, "(" * 200, "(a+)+$", "\x00", "a\x00b", "\u202e", "é", "\ufeff", "𝐚", "\n", "\r\n"),
    *("x" * 128, "x" * 129, "x" * 4_096, "é" * 70_000, "ses_", "ses_" + "z" * 26, "A" * 26, "0", "9" * 40),
    *("http://169.254.169.254/", "https://localhost:1", "127.0.0.1:1", "dns:///x", "a" * 300 + ".b"),
    *(
        "text/plain",
        "application/json",
        "scripted/agent",
        "2026-01-01T00:00:00Z",
        "QQ==",
        "====",
        "2147483648",
    ),
)
_PLAUSIBLE_TEXTS = ("a", "hello", "a.txt", "Say yes.", "scripted/agent", "text/plain", "coordinator")
_TIMES = ("google.protobuf.Duration", "google.protobuf.Timestamp")
_BYTES = (b"", b"\x00", b"a", b"\xff" * 64, b"x" * 70_000, b"\x1f\x8b\x08", b'{"a":' * 500)


class RandomMessages:
    """Makes messages. Strings of the answers that it is told of become values of later ones.

    `known` has the value of fields by name, as `session_id`.
    """

    def __init__(self, rng: random.Random, known: Mapping[str, Any]) -> None:
        self._random = rng
        self._known = known
        self._wildness = 0.0
        self._seen: deque[str] = deque(maxlen=_REMEMBERED)

    def make(self, kind: Descriptor) -> Message:
        """Return a message of this type. Some have few fields, some have all."""
        self._wildness = self._random.choice((0.0, 0.02, 0.1, 0.3, 1.0))
        return self._message(kind, density=self._random.choice((0.3, 0.6, 0.9, 1.0)), depth=0)

    def learn(self, answer: Message) -> None:
        """Remember some short strings of an answer: ids, names, page tokens."""
        for field, value in answer.ListFields():
            if field.message_type is not None and not _is_map(field):
                several = value if field.is_repeated else (value,)
                for one in list(several)[:3]:
                    self.learn(one)
            elif field.type == FieldDescriptor.TYPE_STRING:
                for text in list(value)[:3] if field.is_repeated else (value,):
                    if 0 < len(text) <= 200:
                        self._seen.append(text)

    def _message(self, kind: Descriptor, *, density: float, depth: int) -> Message:
        message = message_factory.GetMessageClass(kind)()
        if kind.full_name in _TIMES and not self._is_wild():
            message.FromSeconds(self._random.randint(0, 60))
            return message
        chosen = {one.name: self._random.choice(one.fields).name for one in kind.oneofs}
        for field in kind.fields:
            if self._random.random() > density or depth > _DEPTH:
                continue
            oneof = field.containing_oneof
            if oneof is None or chosen[oneof.name] == field.name:
                self._fill(message, field, density, depth)
        return message

    def _fill(self, message: Message, field: FieldDescriptor, density: float, depth: int) -> None:
        if _is_map(field):
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(self._random.choice((0, 1, 3))):
                entry = self._value(key, density, depth)
                if value.message_type is not None:
                    getattr(message, field.name)[entry].CopyFrom(self._value(value, density, depth + 1))
                else:
                    getattr(message, field.name)[entry] = self._value(value, density, depth)
        elif field.is_repeated:
            many = 300 if depth == 0 and field.message_type is None else 5
            count = self._random.choice((0, 1, 2, many))
            getattr(message, field.name).extend(self._value(field, density, depth + 1) for _ in range(count))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(self._value(field, density, depth + 1))
        else:
            setattr(message, field.name, self._value(field, density, depth))

    def _value(self, field: FieldDescriptor, density: float, depth: int) -> Any:
        if field.message_type is not None:
            return self._message(field.message_type, density=density, depth=depth)
        if not self._is_wild():
            return self._plausible(field)
        if field.type in _RANGES:
            least, most = _RANGES[field.type]
            near = (0, 1, -1, 2, 50, 1_000, 10**6, least, most, most - 1, self._random.randint(least, most))
            return min(max(self._random.choice(near), least), most)
        makers: dict[int, Callable[[], Any]] = {
            FieldDescriptor.TYPE_BOOL: lambda: self._random.random() < 0.5,
            FieldDescriptor.TYPE_ENUM: lambda: self._enum(field),
            FieldDescriptor.TYPE_STRING: self._text,
            FieldDescriptor.TYPE_BYTES: lambda: self._random.choice(_BYTES),
            FieldDescriptor.TYPE_DOUBLE: lambda: self._random.choice(_REALS),
            FieldDescriptor.TYPE_FLOAT: lambda: self._random.choice(_REALS[:7]),
        }
        return makers[field.type]()

    def _plausible(self, field: FieldDescriptor) -> Any:
        if field.name in self._known and not field.is_repeated:
            return self._known[field.name]
        if field.type in _RANGES or field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            return self._random.choice((0, 1, 1, 2, 10))
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self._random.random() < 0.5
        if field.type == FieldDescriptor.TYPE_ENUM:
            return self._random.choice(field.enum_type.values).number
        if field.type == FieldDescriptor.TYPE_BYTES:
            return b"a"
        if field.name == "request_id":
            return f"{self._random.getrandbits(128):032x}"
        seen = self._random.choice(self._seen) if self._seen else "a"
        return self._random.choice((self._random.choice(_PLAUSIBLE_TEXTS), seen))

    def _enum(self, field: FieldDescriptor) -> int:
        numbers = [value.number for value in field.enum_type.values]
        return self._random.choice([*numbers, *numbers, 9_999, -1])

    def _text(self) -> str:
        if self._seen and self._random.random() < 0.3:
            return self._random.choice(self._seen)
        return self._random.choice(_TEXTS)

    def _is_wild(self) -> bool:
        return self._random.random() < self._wildness


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
