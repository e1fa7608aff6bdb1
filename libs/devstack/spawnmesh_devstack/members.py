"""The mesh's own processes: how each is started, and which variables it is given."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spawnmesh_devstack.ports import LOOPBACK
from spawnmesh_devstack.s3 import S3Server
from spawnmesh_devstack.service_roles import ServiceDsn

SERVICES = ("session", "attachment-blob", "transcript", "model-router", "hook")
RUNNER = "runner"
WORKER = "session-worker"
BLOB_WORKER = "attachment-blob-worker"
HOOK_WORKER = "hook-worker"
TRANSCRIPT_WORKER = "transcript-worker"

_PEERS = {
    "transcript": ("attachment-blob", "model-router", "hook"),
    "session": ("attachment-blob", "transcript", "hook", "model-router"),
    RUNNER: ("session", "transcript", "model-router", "attachment-blob", "hook"),
}
# What a program needs to run at all. Everything else of the caller's, keys above all, stays with the caller.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
_SPAN_DELAY_MILLISECONDS = "100"
_TELEMETRY = "OTEL_"


class Readiness(Enum):
    """How a process shows that it is ready."""

    GRPC = "the standard gRPC health check answers SERVING"
    TCP = "the port takes connections"
    JOBS = "it is registered as a worker of the job queue"
    STARTED = "it runs: nobody waits for what it does"


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the mesh and all it is started with; `port` is what it listens on, where it listens."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    readiness: Readiness
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all members share. `extra` are variables asked for by whoever starts the mesh.

    `databases` is filled once PostgreSQL is ready, and `s3` knows its endpoint once it is.
    """

    keys: Path
    otlp_endpoint: str
    databases: dict[str, ServiceDsn]
    targets: Mapping[str, str]
    s3: S3Server
    router_config_file: Path
    workspace_root: Path
    extra: Mapping[str, str]


def snake(kebab: str) -> str:
    """The name in Python and PostgreSQL of what is called `kebab` elsewhere."""
    return kebab.replace("-", "_")


def prefix_of(service: str) -> str:
    """What the names of a service's variables begin with."""
    return f"{snake(service).upper()}_"


def numbered(name: str, number: int) -> str:
    """What the process is called: `session`, `session-2` and so on."""
    return name if number == 1 else f"{name}-{number}"


def base_environment() -> dict[str, str]:
    """The variables of ours that any process may see."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


def service_member(service: str, port: int, around: Surroundings, number: int = 1) -> Member:
    """A serving process of one of the five."""
    argv = python_module(f"spawnmesh_{snake(service)}", "serve")
    return Member(numbered(service, number), argv, _env(service, port, around), Readiness.GRPC, port)


def worker_member(around: Surroundings, number: int = 1) -> Member:
    """A background process of the session service; it listens nowhere."""
    argv = python_module("spawnmesh_session", "worker")
    return Member(numbered(WORKER, number), argv, _env("session", None, around), Readiness.JOBS)


def blob_worker_member(around: Surroundings, number: int = 1) -> Member:
    """A collector of the attachment-blob service; it listens nowhere."""
    argv = python_module("spawnmesh_attachment_blob", "worker")
    return Member(numbered(BLOB_WORKER, number), argv, _env("attachment-blob", None, around), Readiness.STARTED)


def hook_worker_member(around: Surroundings, number: int = 1) -> Member:
    """What tells observers for the hook service; it listens nowhere."""
    argv = python_module("spawnmesh_hook", "worker")
    return Member(numbered(HOOK_WORKER, number), argv, _env("hook", None, around), Readiness.STARTED)


def transcript_worker_member(around: Surroundings, number: int = 1) -> Member:
    """What looks after transcripts; it listens nowhere."""
    argv = python_module("spawnmesh_transcript", "worker")
    return Member(numbered(TRANSCRIPT_WORKER, number), argv, _env("transcript", None, around), Readiness.STARTED)


def runner_member(name: str, port: int, around: Surroundings) -> Member:
    """A runner; the port answers health checks only."""
    return Member(name, python_module("spawnmesh_runner", "serve"), _env(RUNNER, port, around), Readiness.GRPC, port)


def scripted_model_member(port: int) -> Member:
    """The model server that plays by rule."""
    argv = python_module("spawnmesh_devstack.scripted_model", "--port", str(port))
    return Member("scripted-model", argv, base_environment(), Readiness.TCP, port)


def smollm2_member(port: int) -> Member:
    """The small real model."""
    argv = python_module("spawnmesh_devstack.smollm2", "--port", str(port))
    return Member("smollm2", argv, base_environment(), Readiness.TCP, port)


def sink_member(port: int, file: Path) -> Member:
    """The receiver of traces."""
    argv = python_module("spawnmesh_devstack.otlp_sink", "--port", str(port), "--file", str(file))
    return Member("otlp-sink", argv, base_environment(), Readiness.TCP, port)


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line that runs a module with this interpreter."""
    return (sys.executable, "-m", module, *arguments)


def process_variables(service: str, port: int | None, keys: Path, otlp_endpoint: str) -> dict[str, str]:
    """What any process built on the runtime needs, under the service's prefix."""
    own = {"JWKS_FILE": str(keys / "jwks.json"), "OTLP_ENDPOINT": otlp_endpoint, "DRAIN_GRACE_SECONDS": "1"}
    if (keys / f"{service}.pem").exists():
        own["SIGNING_KEY_FILE"] = str(keys / f"{service}.pem")
    if port is not None:
        own["LISTEN"] = f"{LOOPBACK}:{port}"
    return {
        **base_environment(),
        "OTEL_BSP_SCHEDULE_DELAY": _SPAN_DELAY_MILLISECONDS,  # a person waits for the trace
        **{prefix_of(service) + name: value for name, value in own.items()},
    }


def _env(service: str, port: int | None, around: Surroundings) -> dict[str, str]:
    own: dict[str, str] = {}
    if snake(service) in around.databases:
        own["DATABASE_URL"] = around.databases[snake(service)].app
    for peer in _PEERS.get(service, ()):
        own[f"{snake(peer).upper()}_TARGET"] = around.targets[peer]
    own |= _own_variables(service, around)
    prefix = prefix_of(service)
    return {
        **process_variables(service, port, around.keys, around.otlp_endpoint),
        **{prefix + name: value for name, value in own.items()},
        **_asked_for(service, around.extra),
    }


def _own_variables(service: str, around: Surroundings) -> dict[str, str]:
    match service:
        case "attachment-blob":
            s3 = around.s3.endpoint
            return {
                "S3_ENDPOINT": s3.endpoint,
                "S3_REGION": s3.region,
                "S3_ACCESS_KEY": s3.access_key,
                "S3_SECRET_KEY": s3.secret_key,
                "STS_ENDPOINT": s3.sts_endpoint,
                "STS_ROLE_ARN": s3.role_arn,
            }
        case "transcript":
            return {"COOL_DELAY_SECONDS": "0"}  # no other version is beside it
        case "model-router":
            return {"CONFIG_FILE": str(around.router_config_file)}
        case "hook":
            return {"ALLOW_PRIVATE_ENDPOINTS": "true"}  # plugins run on this very machine
        case "runner":
            return {"WORKSPACE_ROOT": str(around.workspace_root)}
        case _:
            return {}


def _asked_for(service: str, extra: Mapping[str, str]) -> dict[str, str]:
    """A variable goes to the service whose prefix it has, one of OpenTelemetry to all, any other, such as a provider's key, to the router."""
    prefixes = (_TELEMETRY, *(prefix_of(name) for name in (*SERVICES, RUNNER)))
    mine = {name: value for name, value in extra.items() if name.startswith((_TELEMETRY, prefix_of(service)))}
    if service == "model-router":
        mine |= {name: value for name, value in extra.items() if not name.startswith(prefixes)}
    return mine
