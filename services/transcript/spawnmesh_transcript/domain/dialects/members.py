"""Read members of parsed JSON objects."""

from collections.abc import Iterator

from spawnmesh_core.json_text import List, Node, Object, Scalar, String

MAX_ID_CHARACTERS = 1024
"""The longest id of a line. A line with a longer one counts as a line without an id."""


def text_in(node: Object, name: str) -> str:
    """Return the string of this name as a column takes it, empty if there is none."""
    child = node.member(name)
    if not isinstance(child, String):
        return ""
    return child.value.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def id_in(node: Object, name: str) -> str:
    """Return the id of this name, empty if there is none or if it is too long."""
    found = text_in(node, name)
    return found if len(found) <= MAX_ID_CHARACTERS else ""


def object_in(node: Object, name: str) -> Object | None:
    child = node.member(name)
    return child if isinstance(child, Object) else None


def string_in(node: Object, name: str) -> String | None:
    child = node.member(name)
    return child if isinstance(child, String) else None


def objects_in(node: Node | None) -> Iterator[Object]:
    """Return the objects of a list, in order."""
    items = node.items if isinstance(node, List) else ()
    return (item for item in items if isinstance(item, Object))


def scalar_in(line: str, node: Object, name: str) -> str:
    """Return the number, true, false or null of this name as it is written, empty if there is
    none.
    """
    child = node.member(name)
    return line[child.start : child.end] if isinstance(child, Scalar) else ""


def is_true(line: str, node: Object, name: str) -> bool:
    return scalar_in(line, node, name) == "true"
