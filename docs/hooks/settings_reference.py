"""Write the reference of settings, one page, from the classes that read the environment.

mkdocs loads this file as a hook (`hooks` in mkdocs.yml).
"""

import ast
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic_settings import BaseSettings
from spawnmesh_runtime.settings import CpuWorkerSettings, ProcessSettings

PAGE = "reference/settings.md"
SERVICES = ("session", "attachment-blob", "transcript", "model-router", "hook", "runner", "console")

_INTRODUCTION = """# Settings

Every process reads its settings from environment variables. Their names begin with the prefix of
the service, such as `SESSION_LOG_LEVEL`. A variable that is not set is read from the file of its
name in the directory of `<PREFIX>_SECRETS_DIR`, if that is set. Lists and objects are JSON. Times
are seconds, and sizes bytes. A process does not start with a setting that is wrong, and says which.

In Kubernetes, set them in `services.<name>.settings`, without the prefix."""


def pages() -> dict[str, str]:
    """Return the page by its path, as Markdown."""
    own = {name: settings_of(name) for name in SERVICES}
    workers = [name for name, model in own.items() if issubclass(model, CpuWorkerSettings)]
    parts = [
        _INTRODUCTION,
        "## All services",
        _table(ProcessSettings, ProcessSettings, "…_"),
        "## Services that work on large contents",
        f"These have worker processes: {', '.join(f'`{name}`' for name in workers)}.",
        _table(CpuWorkerSettings, CpuWorkerSettings, "…_"),
    ]
    for name, model in own.items():
        parts += [f"## {name}", _table(model, model, f"{name.replace('-', '_').upper()}_")]
    return {PAGE: "\n\n".join(parts) + "\n"}


def settings_of(service: str) -> type[BaseSettings]:
    """Return the class of the service's settings."""
    package = f"spawnmesh_{service.replace('-', '_')}"
    name = "".join(part.capitalize() for part in service.split("-")) + "Settings"
    found: type[BaseSettings] = getattr(importlib.import_module(f"{package}.settings"), name)
    return found


def described(model: type[BaseSettings]) -> Iterator[tuple[str, str]]:
    """Yield the settings that the class itself has, each with its description, or with nothing."""
    (body,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(body, ast.ClassDef)
    for place, statement in enumerate(body.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            following = body.body[place + 1] if place + 1 < len(body.body) else None
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            text = following.value.value if is_text else ""  # type: ignore[union-attr]
            yield statement.target.id, inspect.cleandoc(str(text)).strip()


def _table(model: type[BaseSettings], own: type[BaseSettings], prefix: str) -> str:
    fields: Mapping[str, Mapping[str, Any]] = model.model_json_schema()["properties"]
    rows = ["| setting | value | default | meaning |", "|---|---|---|---|"]
    for name, text in described(own):
        required = model.model_fields[name].is_required()
        default = "required" if required else _default(fields[name])
        meaning = " ".join(text.split()).replace("|", "\\|")
        rows.append(f"| `{prefix}{name.upper()}` | {_type(fields[name])} | {default} | {meaning} |")
    return "\n".join(rows)


def _type(field: Mapping[str, Any]) -> str:
    """Return the values that the setting takes, in words."""
    choices = [one for one in field.get("anyOf", [field]) if one.get("type") != "null"]
    one = choices[0]
    if "enum" in one:
        return ", ".join(f"`{value}`" for value in one["enum"])
    match one.get("type"):
        case "integer":
            return "whole number" + _bounds(one)
        case "number":
            return "number" + _bounds(one)
        case "boolean":
            return "`true` or `false`"
        case "array":
            return "JSON list"
        case "string" if one.get("format") == "path":
            return "path"
        case "string":
            return "text"
    return "JSON object"


def _bounds(one: Mapping[str, Any]) -> str:
    words = {"exclusiveMinimum": "over", "minimum": "from", "maximum": "to", "exclusiveMaximum": "below"}
    return "".join(f" {word} {one[name]:,}" for name, word in words.items() if name in one)


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    if default is None or default in ("", [], {}):
        return ""
    if isinstance(default, Mapping):
        return "its own defaults"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the site."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files
