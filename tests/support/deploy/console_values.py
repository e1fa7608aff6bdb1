"""The console of the chart, as values make it."""

from pathlib import Path
from typing import Any

import yaml

from tests.support.deploy.environment import variables
from tests.support.deploy.rendering import CI, Object, of_kind

ON = str(CI / "console.yaml")
"""The values that enable the console, to be merged over others."""


def pod_of(*values: str) -> Object:
    spec: Object = of_kind("Deployment", *values)["console"]["spec"]["template"]["spec"]
    return spec


def told(*values: str) -> dict[str, str]:
    """Return the variables of the console without their prefix."""
    (container,) = pod_of(*values)["containers"]
    return {name.removeprefix("CONSOLE_"): value for name, value in variables(container).items()}


def over(tmp_path: Path, **values: Any) -> str:
    """Return a file of values that are merged over others."""
    file = tmp_path / "over.yaml"
    file.write_text(yaml.safe_dump(values))
    return str(file)


def secrets_of(*values: str) -> dict[str, dict[str, str]]:
    """Return the keys that the pod gets of each secret, with the files that they become."""
    found: dict[str, dict[str, str]] = {}
    for volume in pod_of(*values)["volumes"]:
        for source in volume.get("projected", {}).get("sources", []):
            items = {item["key"]: item["path"] for item in source["secret"]["items"]}
            found[source["secret"]["name"]] = items
        if "secret" in volume:
            found[volume["secret"]["secretName"]] = {}
    return found


def console_with(**changes: Any) -> Object:
    """Return the values of the console with changes below `console`; a map changes a map."""
    values: Object = yaml.safe_load(Path(ON).read_text())
    for key, value in changes.items():
        before = values["console"].get(key)
        values["console"][key] = {**before, **value} if isinstance(before, dict) else value
    return values
