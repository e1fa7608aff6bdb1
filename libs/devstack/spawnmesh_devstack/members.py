"""The processes of the mesh: how each is started and which variables it gets."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spawnmesh_devstack.console import CONSOLE, console_variables
from spawnmesh_devstack.ports import LOOPBACK
from spawnmesh_devstack.s3 import S3Server
from spawnmesh_devstack.scripted_model import PAUSE_SECONDS
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_devstack.trace_server import TraceAccess

SERVICES = ("session", "attachment-blob", "transcript", "model-router", "hook")
RUNNER = "runner"
WORKER = "session-worker"
BLOB_WORKER = "attachment-blob-worker"
HOOK_WORKER = "hook-worker"
TRANSCRIPT_WORKER = "transcript-worker"

_PEERS = {
    "attachment-blob": ("session",),
    "transcript": ("attachment-blob", "model-router", "hook", "session"),
    "model-router": ("session",),
    "hook": ("session",),
    "session": ("attachment-blob", "transcript", "hook", "model-router"),
    RUNNER: ("session", "transcript", "model-router", "attachment-blob", "hook"),
    CONSOLE: ("session", "transcript", "model-router", "attachment-blob", "hook"),
}
# The variables that every program needs. All other variables of the caller, especially keys, are
# not passed on.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
_SPAN_DELAY_MILLISECONDS = "100"
_TELEMETRY = "OTEL_"


class Readiness(Enum):
    """The way in which a process shows that it is ready."""

    GRPC = "the standard gRPC health check answers SERVING"
    TCP = "the port takes connections"
    JOBS = "it is registered as a worker of the job queue"
    STARTED = "it runs: no other process waits for its work"


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the mesh and everything needed to start it; `port` is the port on which it
    listens, if any.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    readiness: Readiness
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts that all members share. `extra` are variables that the caller asked for.

    `databases` is filled once PostgreSQL is ready, and `s3` has its endpoint once S3 is.
    """

    keys: Path
    otlp_endpoint: str
    trace_access: TraceAccess
    span_journal_dir: Path
    databases: dict[str, ServiceDsn]
    targets: Mapping[str, str]
    s3: S3Server
    router_config_file: Path
    workspace_root: Path
    extra: Mapping[str, str]


def snake(kebab: str) -> str:
    """Return the snake_case name of a kebab-case name."""
    return kebab.replace("-", "_")


def prefix_of(service: str) -> str:
    """Return the prefix of a service's variables."""
    return f"{snake(service).upper()}_"


def numbered(name: str, number: int) -> str:
    """Return the name of the n-th process: `session`, `session-2` and so on."""
    return name if number == 1 else f"{name}-{number}"


def base_environment() -> dict[str, str]:
    """Return the variables that every process gets."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


def service_member(service: str, port: int, around: Surroundings, number: int = 1) -> Member:
    """Return a serving process of one of the five services."""
    argv = python_module(f"spawnmesh_{snake(service)}", "serve")
    return Member(numbered(service, number), argv, _env(service, port, around), Readiness.GRPC, port)


def worker_member(around: Surroundings, number: int = 1) -> Member:
    """Return a background process of the session service; it listens on no port."""
    argv = python_module("spawnmesh_session", "worker")
    return Member(numbered(WORKER, number), argv, _env("session", None, around), Readiness.JOBS)


def blob_worker_member(around: Surroundings, number: int = 1) -> Member:
    """Return a collector of the attachment-blob service; it listens on no port."""
    argv = python_module("spawnmesh_attachment_blob", "worker")
    return Member(
        numbered(BLOB_WORKER, number), argv, _env("attachment-blob", None, around), Readiness.STARTED
    )


def hook_worker_member(around: Surroundings, number: int = 1) -> Member:
    """Return a worker of the hook service; it listens on no port."""
    argv = python_module("spawnmesh_hook", "worker")
    return Member(numbered(HOOK_WORKER, number), argv, _env("hook", None, around), Readiness.STARTED)


def transcript_worker_member(around: Surroundings, number: int = 1) -> Member:
    """Return a background process of the transcript service; it listens on no port."""
    argv = python_module("spawnmesh_transcript", "worker")
    return Member(
        numbered(TRANSCRIPT_WORKER, number), argv, _env("transcript", None, around), Readiness.STARTED
    )


def runner_member(name: str, port: int, around: Surroundings) -> Member:
    """Return a runner; its port answers health checks only."""
    return Member(
        name, python_module("spawnmesh_runner", "serve"), _env(RUNNER, port, around), Readiness.GRPC, port
    )


def console_member(port: int, around: Surroundings) -> Member:
    """Return the console, which serves pages over HTTP."""
    return Member(
        CONSOLE, python_module("spawnmesh_console", "serve"), _env(CONSOLE, port, around), Readiness.TCP, port
    )


def scripted_model_member(port: int, pause_seconds: float = PAUSE_SECONDS) -> Member:
    """Return the server of the scripted model, with the pause between two pieces of an answer."""
    options = ("--port", str(port), "--pause", str(pause_seconds))
    argv = python_module("spawnmesh_devstack.scripted_model", *options)
    return Member("scripted-model", argv, base_environment(), Readiness.TCP, port)


def smollm2_member(port: int) -> Member:
    """Return the server of the small real model."""
    argv = python_module("spawnmesh_devstack.smollm2", "--port", str(port))
    return Member("smollm2", argv, base_environment(), Readiness.TCP, port)


def sink_member(port: int, file: Path, access: TraceAccess, forward: str | None = None) -> Member:
    """Return the receiver of traces, which also serves them, and passes all telemetry on to
    `forward`, a `host:port`.
    """
    numbers = ("--port", str(port), "--traces-port", str(access.port))
    files = ("--file", str(file), "--headers-file", str(access.headers_file))
    passed_on = ("--forward", forward) if forward else ()
    argv = python_module("spawnmesh_devstack.otlp_sink", *numbers, *files, *passed_on)
    return Member("otlp-sink", argv, base_environment(), Readiness.TCP, port)


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs a module with this interpreter."""
    return (sys.executable, "-m", module, *arguments)


def process_variables(service: str, port: int | None, keys: Path, otlp_endpoint: str) -> dict[str, str]:
    """Return the variables of a process that uses the runtime, under the service's prefix."""
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
    own = {"SPAN_JOURNAL_DIR": str(around.span_journal_dir)}
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
        case "model-router":
            return {"CONFIG_FILE": str(around.router_config_file)}
        case "hook":
            # Plugins and receivers of webhooks run on this machine.
            return {"ALLOW_PRIVATE_ENDPOINTS": "true", "ALLOW_PLAIN_WEBHOOKS": "true"}
        case "runner":
            return {"WORKSPACE_ROOT": str(around.workspace_root)}
        case "console":
            return {**console_variables(around.keys.parent), **around.trace_access.variables()}
        case _:
            return {}


def _asked_for(service: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a service: those with its prefix, and those of OpenTelemetry. All
    others, such as a provider's key, go to the router.
    """
    prefixes = (_TELEMETRY, *(prefix_of(name) for name in (*SERVICES, RUNNER, CONSOLE)))
    mine = {name: value for name, value in extra.items() if name.startswith((_TELEMETRY, prefix_of(service)))}
    if service == "model-router":
        mine |= {name: value for name, value in extra.items() if not name.startswith(prefixes)}
    return mine
