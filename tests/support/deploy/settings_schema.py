"""The settings of each service in the schema of the chart's values, with the types and bounds that the
process itself asks for.

`python -m tests.support.deploy.settings_schema` writes them into the schema.
"""

import importlib
import json
import re
from typing import Any

from tests.support.deploy.rendering import ROOT

SERVICES = ("session", "attachment-blob", "transcript", "model-router", "hook", "runner", "console")
SCHEMA_FILE = ROOT / "deploy" / "helm" / "spawnmesh" / "values.schema.json"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LENGTHS = ("minLength", "maxLength")


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SCHEMA_FILE.read_text())
    return found


def settings_of(service: str) -> dict[str, Any]:
    """Return the schema of the `settings` of a workload of the service.

    Secrets are not among them, nor what the chart sets itself.
    """
    package = f"spawnmesh_{service.replace('-', '_')}"
    pascal = "".join(part.capitalize() for part in service.split("-"))
    model = getattr(importlib.import_module(f"{package}.settings"), f"{pascal}Settings")
    kept = re.compile(schema()["$defs"]["settings"]["propertyNames"]["not"]["pattern"])
    fields: dict[str, Any] = model.model_json_schema()["properties"]
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name.upper(): _value(field)
            for name, field in sorted(fields.items())
            if not kept.search(name.upper())
        },
    }


def _value(field: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one variable. Lists and objects are text, as JSON."""
    choices = field.get("anyOf", [field])
    (one,) = (choice for choice in choices if choice.get("type") != "null")
    match one.get("type"):
        case "integer" | "number":
            return {"type": one["type"]} | {name: one[name] for name in _BOUNDS if name in one}
        case "boolean":
            return {"type": "boolean"}
        case "string" if "enum" in one:
            return {"enum": one["enum"]}
        case "string":
            return {"type": "string"} | {name: one[name] for name in _LENGTHS if name in one}
        case _:
            return {"type": "string"}


def main() -> None:
    """Write the settings of all services."""
    changed = schema()
    changed["$defs"] |= {f"settingsOf-{service}": settings_of(service) for service in SERVICES}
    SCHEMA_FILE.write_text(json.dumps(changed, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
