"""Start processes with exactly what the chart gives them."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.deploy.rendering import ROOT, Object, of_kind
from tests.support.forked_process import ForkedProcess, start_forked

PLAIN_VALUES = str(ROOT / "tests/support/deploy/plain.yaml")

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def container_of(component: str, *values: str) -> Object:
    """Return the one container of a workload."""
    (container,) = of_kind("Deployment", *values)[component]["spec"]["template"]["spec"]["containers"]
    found: Object = container
    return found


def variables(container: Object) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def secret_files(component: str, *values: str) -> Iterator[tuple[str, str, str]]:
    """Return (secret, key, file) of everything that is mounted as a setting."""
    for volume in of_kind("Deployment", *values)[component]["spec"]["template"]["spec"]["volumes"]:
        for source in volume.get("projected", {}).get("sources", []):
            for item in source["secret"]["items"]:
                yield source["secret"]["name"], item["key"], item["path"]


class Place:
    """The file system and the addresses of a pod on this machine, below a directory of the test."""

    def __init__(self, root: Path, keys: Path, databases: dict[str, ServiceDsn], s3: S3Endpoint) -> None:
        self.root, self.keys, self.databases, self.s3 = root, keys, databases, s3
        self.port, self.health_port = free_ports(2)

    def environment(self, component: str, *more: str) -> dict[str, str]:
        """Return the rendered variables with local paths and addresses, and write the files.

        There is no TLS unless `more` has it.
        """
        container = container_of(component, "minimal", PLAIN_VALUES, *more)
        env = {
            name: self._here(component, value) if value.startswith(("/run/", "/etc/", "/var/")) else value
            for name, value in variables(container).items()
        }
        self._write_files(component, container["args"][0].removeprefix("spawnmesh_"))
        for name, value in env.items():
            if value == "0.0.0.0:50051":
                env[name] = f"127.0.0.1:{self.port}"
            elif value == "0.0.0.0:50052":
                env[name] = f"127.0.0.1:{self.health_port}"
        stand_ins = {
            "S3_ENDPOINT": self.s3.endpoint,
            "S3_SECURE": "false",
            "STS_ENDPOINT": self.s3.sts_endpoint,
            "STS_ROLE_ARN": self.s3.role_arn,
        }
        for name, value in stand_ins.items():
            env |= {key: value for key in env if key.endswith(f"BLOB_{name}")}
        return {**env, "PATH": "/usr/bin:/bin", "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=pod"}

    def _here(self, component: str, path: str) -> str:
        return f"{self.root}/{component}{path}"

    def _write_files(self, component: str, snake: str) -> None:
        service = snake.replace("_", "-")
        contents = {
            "access-key": self.s3.access_key,
            "secret-key": self.s3.secret_key,
            f"{service}-url": self.databases[snake].app if snake in self.databases else "",
        }
        mounted = self.root / component / "run" / "secrets"
        for folder in ("spawnmesh", "tokens"):
            (mounted / folder).mkdir(parents=True)
        for _, key, file in secret_files(component, "minimal"):
            (mounted / "spawnmesh" / file).write_text(contents[key] + "\n")
        (mounted / "tokens" / "signing.pem").write_bytes((self.keys / f"{service}.pem").read_bytes())
        (mounted / "tokens" / "jwks.json").write_bytes((self.keys / "jwks.json").read_bytes())
        if service == "model-router":
            folder = self.root / component / "etc" / "spawnmesh"
            folder.mkdir(parents=True)
            (folder / "router.json").write_text(
                of_kind("ConfigMap", "minimal")["model-router-config"]["data"]["router.json"]
            )
        if service == "runner":
            (self.root / component / "var" / "lib" / "spawnmesh" / "workspaces").mkdir(parents=True)


async def health_of(port: int, service: str = "") -> int:
    """Return the status that a kubelet gets without TLS, or 0 for no answer."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        return await health_over(channel, service)


async def health_over(channel: grpc.aio.Channel, service: str = "") -> int:
    """Return a status, or 0 for no answer."""
    check = health_pb2_grpc.HealthStub(channel).Check
    try:
        answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=2)
    except grpc.aio.AioRpcError:
        return 0
    status: int = answer.status
    return status


_READY_SECONDS = 120.0  # Several processes that start together share the cores of a busy machine.
_LOG_BYTES = 64 * 1024 * 1024  # More than a process writes here: it stops if its output is not read.

Process = asyncio.subprocess.Process | ForkedProcess


@asynccontextmanager
async def started(
    container: Object, env: dict[str, str], *, python: Path = Path(sys.executable)
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the process like the entry point of the image, with this environment alone; end it with the block."""
    process = await asyncio.create_subprocess_exec(
        python, "-X", "faulthandler", "-m", *container["args"], env=env, cwd="/",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, limit=_LOG_BYTES,
    )  # fmt: skip
    try:
        yield process
    finally:
        await _end(process)


@asynccontextmanager
async def forked(
    fork_server: ForkServer, container: Object, env: dict[str, str]
) -> AsyncIterator[ForkedProcess]:
    """Start the process as `started` does, without its imports; end it with the block."""
    process = await start_forked(fork_server, ["-m", *container["args"]], env, Path("/"))
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    await printed_until_its_end(process)


async def printed_until_its_end(process: Process) -> str:
    """Return what the process prints until it ends.

    A process that does not end is aborted, and its stack is part of the error.
    """
    printing = asyncio.create_task(process.communicate())
    done, _ = await asyncio.wait({printing}, timeout=60)
    if not done:
        process.send_signal(signal.SIGABRT)
    printed = (await printing)[0].decode()
    assert done, f"did not end within 60 seconds; it had printed, and was doing:\n{printed}"
    return printed


async def until(port: int, status: int, process: Process, service: str = "") -> None:
    async with asyncio.timeout(_READY_SECONDS):
        while await health_of(port, service) != status:
            if process.returncode is not None:
                raise AssertionError((await process.communicate())[0].decode())
            await asyncio.sleep(0.1)
