"""Print the text of a `.proto` file from its descriptor.

The package of the validation rules has their descriptor alone, and the compilers of other languages
need text. This module prints what that file uses: messages, enums, extensions, and every option,
those included that the file itself declares. A descriptor has no comments.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import Message

_LABELS = {FieldDescriptorProto.LABEL_OPTIONAL: "optional", FieldDescriptorProto.LABEL_REPEATED: "repeated"}
_SCALARS = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}
_LARGEST_NUMBER = 536_870_911


def print_proto(file: FileDescriptorProto) -> str:
    """Return text that compiles to the same descriptor. Extensions that options use must be known
    to the process. Raises ValueError if the file is not written in proto2.
    """
    if file.syntax not in ("", "proto2"):
        raise ValueError(f"{file.name} is written in {file.syntax}")
    return "\n".join(_lines(file)) + "\n"


def _lines(file: FileDescriptorProto) -> Iterator[str]:
    yield from ('syntax = "proto2";', f"package {file.package};")
    yield from (f'import "{name}";' for name in file.dependency)
    yield from (f"option {option};" for option in _options(file.options))
    for message in file.message_type:
        yield from ("", *_block(f"message {message.name}", _message(message)))
    for enum in file.enum_type:
        yield from ("", *_block(f"enum {enum.name}", _enum(enum)))
    for extension in file.extension:
        yield from ("", *_block(f"extend {extension.extendee}", [_field(extension)]))


def _block(head: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"{head} {{"
    yield from (f"  {line}" for line in lines)
    yield "}"


def _message(message: DescriptorProto) -> Iterator[str]:
    yield from (f"option {option};" for option in _options(message.options))
    for oneof, fields in groupby(message.field, lambda field: _oneof_of(field, message)):
        if oneof:
            yield from _block(f"oneof {oneof}", [_field(field, label="") for field in fields])
        else:
            yield from (_field(field) for field in fields)
    for extended in message.extension_range:
        yield f"extensions {_range(extended.start, extended.end - 1)};"
    for reserved in message.reserved_range:
        yield f"reserved {_range(reserved.start, reserved.end - 1)};"
    yield from (f'reserved "{name}";' for name in message.reserved_name)


def _oneof_of(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    return message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""


def _field(field: FieldDescriptorProto, label: str | None = None) -> str:
    label = f"{_LABELS[field.label]} " if label is None else label
    options = ", ".join(_options(field.options))
    given = f" [{options}]" if options else ""
    return f"{label}{field.type_name or _SCALARS[field.type]} {field.name} = {field.number}{given};"


def _enum(enum: EnumDescriptorProto) -> Iterator[str]:
    yield from (f"option {option};" for option in _options(enum.options))
    yield from (f"{value.name} = {value.number};" for value in enum.value)
    for reserved in enum.reserved_range:
        yield f"reserved {_range(reserved.start, reserved.end)};"
    yield from (f'reserved "{name}";' for name in enum.reserved_name)


def _range(first: int, last: int) -> str:
    return f"{first} to {'max' if last == _LARGEST_NUMBER else last}"


def _options(options: Message) -> Iterator[str]:
    for option, value in options.ListFields():
        name = f"({option.full_name})" if option.is_extension else option.name
        yield f"{name} = {_literal(option, value)}"


def _literal(option: FieldDescriptor, value: Any) -> str:
    if isinstance(value, Message):
        return f"{{ {text_format.MessageToString(value, as_one_line=True)} }}"
    if option.enum_type is not None:
        return str(option.enum_type.values_by_number[value].name)
    return json.dumps(value)
