"""The settings that the chart takes for a workload are those that its process reads, less what the chart itself decides."""

import importlib
import json
import re
from typing import Any

import pytest

from tests.deploy.rendering import ROOT

SCHEMA: dict[str, Any] = json.loads((ROOT / "deploy/helm/spawnmesh/values.schema.json").read_text())
SERVICES = ("session", "attachment-blob", "transcript", "model-router", "hook", "runner")
# Secrets, which are files, and what is the same for the whole mesh.
NOT_TO_BE_SET = re.compile(SCHEMA["$defs"]["settings"]["propertyNames"]["not"]["pattern"])


def read_by(service: str) -> set[str]:
    """The variables of the service's process, without their prefix."""
    package = f"spawnmesh_{service.replace('-', '_')}"
    pascal = "".join(part.capitalize() for part in service.split("-"))
    model = getattr(importlib.import_module(f"{package}.settings"), f"{pascal}Settings")
    return {name.upper() for name in model.model_fields}


@pytest.mark.parametrize("service", SERVICES)
def test_settings_that_are_taken_are_those_that_the_process_reads(service: str) -> None:
    taken = SCHEMA["$defs"][f"settingsOf-{service}"]["enum"]
    assert taken == sorted(name for name in read_by(service) if not NOT_TO_BE_SET.search(name))


@pytest.mark.parametrize("workload", SCHEMA["properties"]["services"]["properties"])
def test_every_workload_takes_settings_of_its_service_alone(workload: str) -> None:
    names = SCHEMA["properties"]["services"]["properties"][workload]["properties"]["settings"]["propertyNames"]
    assert names == {"$ref": f"#/$defs/settingsOf-{workload.removesuffix('-worker')}"}
