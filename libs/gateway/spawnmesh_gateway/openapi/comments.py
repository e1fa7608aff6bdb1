"""The comments of the contracts, which stubs do not have, from an image of descriptors."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _NESTED_ENUMS = 2, 3, 4
_METHODS = 2

Comments = Mapping[str, str]
"""The comment of each element by its full name."""


def comments_of(image: Path) -> Comments:
    """Return the comments of a FileDescriptorSet with source information."""
    found: dict[str, str] = {}
    for file in FileDescriptorSet.FromString(image.read_bytes()).file:
        places = {tuple(one.path): one.leading_comments for one in file.source_code_info.location}
        for path, name in _elements(file):
            if text := places.get(path, "").strip():
                found[name] = "\n".join(line.strip() for line in text.splitlines())
    return found


def _elements(file: FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    yield from _messages((_MESSAGES,), file.package, file.message_type)
    for place, enum in enumerate(file.enum_type):
        yield (_ENUMS, place), f"{file.package}.{enum.name}"
    for place, service in enumerate(file.service):
        path, name = (_SERVICES, place), f"{file.package}.{service.name}"
        yield path, name
        for number, method in enumerate(service.method):
            yield (*path, _METHODS, number), f"{name}.{method.name}"


def _messages(
    path: tuple[int, ...], parent: str, messages: Iterable[DescriptorProto]
) -> Iterator[tuple[tuple[int, ...], str]]:
    for place, message in enumerate(messages):
        own, name = (*path, place), f"{parent}.{message.name}"
        yield own, name
        for number, field in enumerate(message.field):
            yield (*own, _FIELDS, number), f"{name}.{field.name}"
        for number, enum in enumerate(message.enum_type):
            yield (*own, _NESTED_ENUMS, number), f"{name}.{enum.name}"
        yield from _messages((*own, _NESTED), name, message.nested_type)
