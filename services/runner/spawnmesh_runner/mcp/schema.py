"""Schemas that servers give for their tools' arguments: made one piece, bounded, and held against a call.

What comes from a server is not trusted: no reference leads out of the schema, no expression of its is run, and how long a check takes is bounded
by its size.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import validators
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry

from spawnmesh_runner.mcp.text import plain
from spawnmesh_runner.tools.tool import ToolRefused

MAX_SCHEMA_BYTES = 32 * 1024
_MAX_NODES = 5_000
_MAX_DEPTH = 64
_NOT_TOLD = (
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "$comment",
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveRef",
)
_NAMING = ("properties", "patternProperties", "dependentSchemas", "dependentRequired")
_MAX_PROBLEMS = 10
_TELLING = ("type", "enum", "const", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")


class UnusableSchema(Exception):
    """A schema that no model can be shown; the text says why, without a word of it."""


def in_one_piece(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with what it refers to in place, and texts made plain. Raises UnusableSchema.

    A part that contains itself, or that is elsewhere, may be anything: the server will say what it thinks of it.
    """
    if schema.get("type") != "object":
        raise UnusableSchema("its schema is not that of an object")
    whole = _Flat(schema).of(schema, (), 0)
    try:
        size = len(json.dumps(whole, allow_nan=False).encode())
        validators.Draft202012Validator.check_schema(whole)
    except (SchemaError, ValueError, TypeError, RecursionError):
        raise UnusableSchema("its schema is not one") from None
    if size > MAX_SCHEMA_BYTES:
        raise UnusableSchema(f"its schema has more than {MAX_SCHEMA_BYTES} bytes")
    assert isinstance(whole, dict)
    return whole


class _Flat:
    """One schema being flattened, with what is left of its bound."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _MAX_NODES

    def of(self, node: object, inside: tuple[str, ...], depth: int, *, has_keywords: bool = True) -> object:
        """The part in one piece. `inside` are the references that it stands in; `has_keywords` is false where keys are names of arguments."""
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise UnusableSchema("its schema is too large, or too deep")
        if isinstance(node, str):
            return plain(node)
        if isinstance(node, list):
            return [self.of(item, inside, depth + 1) for item in node]
        if not isinstance(node, dict):
            return node
        if has_keywords and isinstance(reference := node.get("$ref"), str):
            target = None if reference in inside else self._target(reference)
            found = target if isinstance(target, dict) else {}
            beside = {key: value for key, value in node.items() if key != "$ref"}
            return self.of({**found, **beside}, (*inside, reference), depth + 1)
        return {
            plain(key): self.of(value, inside, depth + 1, has_keywords=not (has_keywords and key in _NAMING))
            for key, value in node.items()
            if not (has_keywords and key in _NOT_TOLD)
        }

    def _target(self, reference: str) -> object:
        """What a reference into the schema itself leads to; None for any other."""
        if not reference.startswith("#"):
            return None
        node: object = self._root
        for step in reference[1:].split("/")[1:]:
            if not isinstance(node, dict):
                return None
            node = node.get(step.replace("~1", "/").replace("~0", "~"))
        return node


def checker(schema: Mapping[str, Any]) -> Callable[[object], dict[str, Any]]:
    """What holds arguments against a schema that is in one piece: it gives them back, or raises ToolRefused INVALID_ARGUMENTS.

    Expressions are not run (`pattern` and the like): the server has its own say on them, and they could be made to run for ever.
    """
    made = validators.extend(
        validators.Draft202012Validator,
        {name: _unchecked for name in ("pattern", "patternProperties", "unevaluatedProperties", "format")}
        | {"additionalProperties": _additional},
    )
    validator = made(schema, registry=Registry())

    def check(arguments: object) -> dict[str, Any]:
        if not isinstance(arguments, dict):
            raise ToolRefused("INVALID_ARGUMENTS", "the arguments are not an object")
        problems: list[str] = []
        for error in validator.iter_errors(arguments):
            problems.append(_told(error))
            if len(problems) == _MAX_PROBLEMS:
                break
        if problems:
            raise ToolRefused("INVALID_ARGUMENTS", "; ".join(problems))
        return arguments

    return check


def _unchecked(_validator: object, _value: object, _instance: object, _schema: object) -> Iterator[ValidationError]:
    return iter(())


def _additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """`additionalProperties`, but where names are told by expressions: those are not run."""
    if not isinstance(instance, dict) or "patternProperties" in schema:
        return
    for name in instance:
        if name in schema.get("properties", {}):
            continue
        if allowed is False:
            yield ValidationError("unknown argument", path=(name,), validator="additionalProperties")
        elif isinstance(allowed, dict):
            yield from validator.descend(instance[name], allowed, path=name)


def _told(error: ValidationError) -> str:
    """Where and what, never the value: it may be a whole file."""
    where = ".".join(map(str, error.absolute_path)) or "arguments"
    rule = error.validator_value
    if error.validator == "required" and isinstance(rule, list) and isinstance(error.instance, dict):
        missing = [str(name) for name in rule if name not in error.instance]
        return f"{where}: lacks {', '.join(missing)}"[:500]
    if error.validator == "additionalProperties":
        return f"{where}: there is no such argument"[:500]
    shown = json.dumps(rule, default=str)[:200] if error.validator in _TELLING else ""
    return f"{where}: does not fit {error.validator} {shown}".rstrip()[:500]
