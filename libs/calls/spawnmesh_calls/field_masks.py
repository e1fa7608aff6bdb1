"""Field masks of updates, as AIP-134 has them: which fields of a resource an update changes."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from spawnmesh_core.errors import invalid

Path = tuple[str, ...]
"""The names of a field and of the messages around it, outermost first."""

EVERY_FIELD = "*"
_OWN_PACKAGE = "spawnmesh."


def changed_paths(mask: FieldMask, resource: Message, fixed: Collection[str]) -> tuple[Path, ...]:
    """Return the fields of the resource that an update with this mask changes.

    `*` means every field except the `fixed` ones, and an empty mask each of these that is set,
    also inside messages of the mesh. Raise INVALID_REQUEST for a path that is fixed, leads to no
    field, or leads into a list, a map or a message of another package.
    """
    if not mask.paths:
        return tuple(path for path in _set_fields(resource) if path[0] not in fixed)
    if list(mask.paths) == [EVERY_FIELD]:
        return tuple((name,) for name in resource.DESCRIPTOR.fields_by_name if name not in fixed)
    paths = tuple(tuple(text.split(".")) for text in mask.paths)
    for index, path in enumerate(paths):
        field = f"update_mask.paths[{index}]"
        if path == (EVERY_FIELD,):
            raise invalid(field, "stands alone: `*` means every field")
        if path[0] in fixed or not _exists(path, resource):
            known = (name for name in resource.DESCRIPTOR.fields_by_name if name not in fixed)
            raise invalid(field, f"is none of {', '.join(known)}, and no field below one of these")
    return paths


def apply_changes(
    paths: Iterable[Path], source: Message, target: Message, defaults: Message | None = None
) -> None:
    """Copy the fields from `source` to `target`.

    A field whose message is absent in `source` gets its value in `defaults`. If its message is
    absent in `target`, the other fields of that message get theirs, too.
    """
    for path in paths:
        _copy(path, source, target, type(target)() if defaults is None else defaults)


def _set_fields(message: Message) -> Iterator[Path]:
    for field, value in message.ListFields():
        if _is_own_message(field):
            for path in _set_fields(value):
                yield (field.name, *path)
        else:
            yield (field.name,)


def _exists(path: Path, resource: Message) -> bool:
    message: Any = resource.DESCRIPTOR
    for name in path:
        if message is None or name not in message.fields_by_name:
            return False
        field = message.fields_by_name[name]
        message = field.message_type if _is_own_message(field) else None
    return True


def _is_own_message(field: FieldDescriptor) -> bool:
    """Return whether the field is one message whose fields can be changed alone.

    A part of a duration, for example, cannot.
    """
    return (
        field.message_type is not None
        and not field.is_repeated
        and field.message_type.full_name.startswith(_OWN_PACKAGE)
    )


def _copy(path: Sequence[str], source: Message, target: Message, defaults: Message) -> None:
    *parents, leaf = path
    for name in parents:
        default: Message = getattr(defaults, name)
        source = getattr(source, name) if source.HasField(name) else default
        if not target.HasField(name):
            getattr(target, name).CopyFrom(default)
        target, defaults = getattr(target, name), default
    field = source.DESCRIPTOR.fields_by_name[leaf]
    target.ClearField(leaf)
    if field.has_presence and not source.HasField(leaf):
        return
    value = getattr(source, leaf)
    if field.is_repeated:
        getattr(target, leaf).MergeFrom(value)
    elif field.message_type is not None:
        getattr(target, leaf).CopyFrom(value)
        getattr(target, leaf).SetInParent()
    else:
        setattr(target, leaf, value)
