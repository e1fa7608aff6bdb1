"""A pod's file system on this machine: volumes are laid out below a directory, and the container's paths are moved there."""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.deploy.rendering import Object

PLAIN = {"POD_NAME", "POD_NAMESPACE", "OTEL_RESOURCE_ATTRIBUTES"}
_MOUNTED = ("/run/", "/etc/", "/var/")

Secrets = Mapping[str, Mapping[str, str]]
"""Content by the secret's name and key."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended, and what it printed."""

    code: int
    printed: str


async def run_container(
    pod: Object, container: Object, root: Path, secrets: Secrets, stand_ins: Mapping[str, str]
) -> Ended:
    """Runs it to its end with exactly its rendered arguments, variables and files, of which `stand_ins` replaces values by what is here.

    Raises KeyError for a key of a secret that is not there: Kubernetes would not start the pod.
    """
    for mount in container["volumeMounts"]:
        (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
        folder = root / mount["mountPath"].lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in _files(volume, secrets):
            (folder / file).write_text(content)
    given = {one["name"]: one["value"] for one in container.get("env", []) if one["name"] not in PLAIN}
    env = {name: _moved(root, stand_ins.get(value, value)) for name, value in given.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *(_moved(root, argument) for argument in container["args"]),
        env={**env, "PATH": "/usr/bin:/bin"}, cwd="/", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(120):
        printed, _ = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, printed.decode())


def _files(volume: Object, secrets: Secrets) -> Iterator[tuple[str, str]]:
    """Name and content of each file of the volume, all of a secret where no items are named."""
    secret = volume.get("secret", {})
    sources = [{"name": secret["secretName"], **secret}] if secret else []
    sources += [source["secret"] for source in volume.get("projected", {}).get("sources", [])]
    for source in sources:
        held = secrets[source["name"]]
        for item in source.get("items", [{"key": key, "path": key} for key in held]):
            yield item["path"], held[item["key"]]


def _moved(root: Path, value: str) -> str:
    return f"{root}{value}" if value.startswith(_MOUNTED) else value
