"""Run a container of the chart on this machine.

Its volumes are directories below a root, and its paths are moved there.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.s3 import S3Endpoint

from tests.support.deploy.rendering import Object, of_kind
from tests.support.forked_process import start_forked

PLAIN = {"POD_NAME", "POD_NAMESPACE", "OTEL_RESOURCE_ATTRIBUTES"}
_MOUNTED = ("/run/", "/etc/", "/var/")

Secrets = Mapping[str, Mapping[str, str]]
"""Content by the secret's name and key."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code of a container, and its output."""

    code: int
    printed: str


def pod_of(name: str, *values: str) -> tuple[Object, Object]:
    """Return a pod without a workload, as `helm test` runs it, and its one container."""
    pod = of_kind("Pod", *values)[name]["spec"]
    (container,) = pod["containers"]
    return pod, container


def storage_stand_ins(s3: S3Endpoint) -> dict[str, str]:
    """Return the local value for each rendered value that is about S3."""
    return {
        "s3.example.com": s3.endpoint,
        "https://sts.example.com": s3.sts_endpoint,
        "arn:aws:iam::123456789012:role/spawnmesh-tenant": s3.role_arn,
    }


async def run_container(
    fork_server: ForkServer,
    pod: Object,
    container: Object,
    root: Path,
    secrets: Secrets,
    stand_ins: Mapping[str, str],
) -> Ended:
    """Run the container to its end with exactly its rendered arguments, variables and files.

    `stand_ins` replaces values of variables by local ones. Raises KeyError for a missing key of a
    secret: Kubernetes would not start the pod.
    """
    for mount in container["volumeMounts"]:
        (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
        folder = root / mount["mountPath"].lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in _files(volume, secrets):
            (folder / file).write_text(content)
    given = _variables(container, secrets)
    env = {name: _moved(root, stand_ins.get(value, value)) for name, value in given}
    argv = ["-m", *(_moved(root, argument) for argument in container["args"])]
    process = await start_forked(fork_server, argv, {**env, "PATH": "/usr/bin:/bin"}, Path("/"))
    async with asyncio.timeout(120):
        printed, _ = await process.communicate()
    return Ended(await process.wait(), printed.decode())


def _variables(container: Object, secrets: Secrets) -> Iterator[tuple[str, str]]:
    """Yield name and value of each variable; without those that Kubernetes knows of the pod."""
    for one in container.get("env", []):
        if "value" in one and one["name"] not in PLAIN:
            yield one["name"], one["value"]
        elif one["name"] not in PLAIN:
            source = one["valueFrom"]["secretKeyRef"]
            if source["name"] in secrets or not source.get("optional"):
                yield one["name"], secrets[source["name"]][source["key"]]


def _files(volume: Object, secrets: Secrets) -> Iterator[tuple[str, str]]:
    """Return name and content of each file of the volume; without items, all keys of the secret."""
    secret = volume.get("secret", {})
    sources = [{"name": secret["secretName"], **secret}] if secret else []
    sources += [source["secret"] for source in volume.get("projected", {}).get("sources", [])]
    for source in sources:
        held = secrets[source["name"]]
        for item in source.get("items", [{"key": key, "path": key} for key in held]):
            yield item["path"], held[item["key"]]


def _moved(root: Path, value: str) -> str:
    return f"{root}{value}" if value.startswith(_MOUNTED) else value
