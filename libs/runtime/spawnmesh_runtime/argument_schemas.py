"""Schemas of tools' arguments: inlined, limited, and used to check calls.

Their authors are not trusted: no reference leads out of a schema, its size is limited, and none of
its expressions is evaluated.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import validators
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from spawnmesh_core.invisible_text import replace_invisible

MAX_SCHEMA_BYTES = 32 * 1024
_MAX_NODES = 5_000
_MAX_DEPTH = 64
_DROPPED_KEYWORDS = (
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
_NAME_KEYWORDS = ("properties", "patternProperties", "dependentSchemas", "dependentRequired")
_MAX_PROBLEMS = 10
_UNCHECKED = ("pattern", "patternProperties", "unevaluatedProperties", "format")
_SHOWN_RULES = (
    "type",
    "enum",
    "const",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
)


class UnusableSchema(Exception):
    """A schema that no model can be shown. The text says why and quotes nothing of the schema."""


def inline_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with its references inlined and invisible characters replaced.

    Raises UnusableSchema.

    A part that contains itself, or that is outside of the schema, accepts anything: the server
    checks it.
    """
    if schema.get("type") != "object":
        raise UnusableSchema("its schema is not that of an object")
    inlined = _Inliner(schema).of(schema, (), 0)
    try:
        size = len(json.dumps(inlined, allow_nan=False).encode())
        validators.Draft202012Validator.check_schema(inlined)
    except (SchemaError, ValueError, TypeError, RecursionError):
        raise UnusableSchema("its schema is not one") from None
    if size > MAX_SCHEMA_BYTES:
        raise UnusableSchema(f"its schema has more than {MAX_SCHEMA_BYTES} bytes")
    assert isinstance(inlined, dict)
    return inlined


class _Inliner:
    """The inlining of one schema, with a limit on its nodes."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _MAX_NODES

    def of(self, node: object, inside: tuple[str, ...], depth: int, *, has_keywords: bool = True) -> object:
        """Return the part with its references inlined.

        `inside` are the references that contain it. `has_keywords` is False where the keys are
        names of arguments.
        """
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise UnusableSchema("its schema is too large, or too deep")
        if isinstance(node, str):
            return replace_invisible(node)
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
            replace_invisible(key): self.of(
                value, inside, depth + 1, has_keywords=not (has_keywords and key in _NAME_KEYWORDS)
            )
            for key, value in node.items()
            if not (has_keywords and key in _DROPPED_KEYWORDS)
        }

    def _target(self, reference: str) -> object:
        """Return the part that a reference into the schema names; None for any other."""
        if not reference.startswith("#"):
            return None
        node: object = self._root
        for step in reference[1:].split("/")[1:]:
            if not isinstance(node, dict):
                return None
            node = node.get(step.replace("~1", "/").replace("~0", "~"))
        return node


class ArgumentCheck:
    """Checks arguments against an inlined schema.

    Regular expressions (`pattern` and the like) are not evaluated, since their author could make
    them run for ever: the tool checks them itself. Other rules can take seconds, if the schema and
    the arguments are made for it: where others would wait, check in a worker process.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        rules: dict[str, Any] = {name: _unchecked for name in _UNCHECKED}
        made = validators.extend(
            validators.Draft202012Validator, rules | {"additionalProperties": _additional}
        )
        self._validator = made(schema, registry=Registry())

    def problems(self, arguments: object) -> list[str]:
        """Return a line for each violated rule, at most ten: the place and the rule, no value."""
        if not isinstance(arguments, dict):
            return ["the arguments are not an object"]
        errors = self._validator.iter_errors(arguments)
        return [_describe_problem(error) for error in itertools.islice(errors, _MAX_PROBLEMS)]


def _unchecked(
    _validator: object, _value: object, _instance: object, _schema: object
) -> Iterator[ValidationError]:
    return iter(())


def _additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check `additionalProperties`, unless `patternProperties` names arguments by expressions."""
    if not isinstance(instance, dict) or "patternProperties" in schema:
        return
    for name in instance:
        if name in schema.get("properties", {}):
            continue
        if allowed is False:
            yield ValidationError("unknown argument", path=(name,), validator="additionalProperties")
        elif isinstance(allowed, dict):
            yield from validator.descend(instance[name], allowed, path=name)


def _describe_problem(error: ValidationError) -> str:
    """Name the place and the rule, but never the value: it may be a complete file."""
    where = ".".join(map(str, error.absolute_path)) or "arguments"
    rule = error.validator_value
    if error.validator == "required" and isinstance(rule, list) and isinstance(error.instance, dict):
        missing = [str(name) for name in rule if name not in error.instance]
        return f"{where}: lacks {', '.join(missing)}"[:500]
    if error.validator == "additionalProperties":
        return f"{where}: there is no such argument"[:500]
    shown = json.dumps(rule, default=str)[:200] if error.validator in _SHOWN_RULES else ""
    return f"{where}: does not fit {error.validator} {shown}".rstrip()[:500]
