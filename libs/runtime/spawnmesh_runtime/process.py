"""A process of the mesh: its name, keys, telemetry, logs and event loop.

Nothing happens at import.
"""

import asyncio
import signal
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeVar

import uvloop
from opentelemetry._logs import Logger
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import Tracer
from spawnmesh_core.dependency_watch import DependencyWatch

from spawnmesh_runtime.call_limits import CallLimits
from spawnmesh_runtime.dependency_reports import report_dependencies
from spawnmesh_runtime.health import Health, open_health
from spawnmesh_runtime.interceptors.observe import DeniedCalls
from spawnmesh_runtime.jwks import JwksFile, JwksUnreadable, JwksUrl
from spawnmesh_runtime.log_export import NO_LOGGER, open_log_export
from spawnmesh_runtime.logs import write_json_logs
from spawnmesh_runtime.metrics import NO_METRICS, Metrics, open_metrics
from spawnmesh_runtime.oidc import OidcVerifier
from spawnmesh_runtime.request_memory import RequestMemory
from spawnmesh_runtime.revoked_tokens import RevokedTokens
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.shutdown import close_loop
from spawnmesh_runtime.telemetry import use_tracer
from spawnmesh_runtime.tls_files import LoggedTlsFiles, measure_expiry, tls_files
from spawnmesh_runtime.tokens import TokenMinter, TokenVerifier
from spawnmesh_runtime.tracing import open_tracing
from spawnmesh_runtime.workarounds.malloc_thresholds import fix_malloc_thresholds
from spawnmesh_runtime.workarounds.wait_for import replace_wait_for

T = TypeVar("T")

_SWITCH_SECONDS = 0.0005
"""The time after which a computing thread must release the interpreter for the event loop.

With Python's default of 5 ms, each wake-up of the loop waits that long while a thread encodes spans
or a large message.
"""


@dataclass(frozen=True, slots=True)
class Process:
    """The parts of a process that its servers and channels need. `service` is the kebab id.

    `minter` is None without `signing_key_file`, and `verifier` is None without `jwks_file` or
    `jwks_url`. `tls` has the files of the settings for all connections of the process; None means
    plaintext. `dependencies` are probed while the process serves or works. Its servers refuse the
    `revoked` tokens, and calls above the `call_limits` of their tenants, and bound their large
    requests by `request_memory`. `denied` are the calls without a valid token at all of its ports.
    """

    service: str
    settings: ProcessSettings
    minter: TokenMinter | None
    verifier: TokenVerifier | None
    tracer: Tracer
    metrics: Metrics = NO_METRICS
    logger: Logger = NO_LOGGER
    health: Health = field(default_factory=Health)
    dependencies: DependencyWatch = field(default_factory=DependencyWatch)
    denied: DeniedCalls = field(default_factory=DeniedCalls)
    revoked: RevokedTokens = field(init=False)
    call_limits: CallLimits = field(init=False)
    request_memory: RequestMemory = field(init=False)
    tls: LoggedTlsFiles | None = field(init=False)

    def __post_init__(self) -> None:
        # Not a parameter: a caller that omits it would use plaintext although the settings require
        # TLS.
        object.__setattr__(self, "tls", tls_files(self.settings))
        count = self.settings.max_revoked_tokens
        object.__setattr__(self, "revoked", RevokedTokens(max_count=count, max_run_count=count))
        object.__setattr__(self, "call_limits", CallLimits(self.settings.call_limits, self.metrics.meter))
        object.__setattr__(self, "request_memory", RequestMemory(self.settings.request_memory_bytes))


@asynccontextmanager
async def start_process(service: str, settings: ProcessSettings) -> AsyncIterator[Process]:
    """Set up logs, tracing, metrics, keys and health checks for the block.

    At its end, send the remaining spans, metrics and log records. Raises SystemExit with one line
    if a key file, a TLS file or the JWKS file cannot be read, or if a port cannot be bound.
    """
    write_json_logs(service, settings.log_level)
    minter, verifier = _minter(service, settings), _verifier(service, settings)
    resource = _resource(service, settings)
    tracing, measuring, logging = ExitStack(), ExitStack(), ExitStack()
    tracer = tracing.enter_context(open_tracing(settings, resource))
    use_tracer(tracer)
    try:
        metrics = measuring.enter_context(open_metrics(service, settings, resource))
        logger = logging.enter_context(open_log_export(settings, resource))
        denied = DeniedCalls()
        async with open_health(service, settings, metrics.meter, denied) as health:
            process = Process(
                service, settings, minter, verifier, tracer, metrics, logger, health, denied=denied
            )
            report_dependencies(process.dependencies, health, metrics.meter)
            if process.tls is not None:
                measure_expiry(metrics.meter, process.tls)
            yield process
    finally:
        # Concurrently: each of them waits for a collector that does not answer.
        await asyncio.gather(*(asyncio.to_thread(one.close) for one in (tracing, measuring, logging)))


def run_process(main: Coroutine[Any, Any, T]) -> T:
    """Run the main coroutine of a process on uvloop and return its result.

    SIGTERM cancels the coroutine and ends the process with exit code 0, unless the coroutine has
    replaced the signal handler. Without a handler, the first process of a container ignores
    SIGTERM. Tasks that remain at the end are cancelled and have 4 s to end; they do not change the
    result.
    """
    replace_wait_for()
    sys.setswitchinterval(_SWITCH_SECONDS)
    fix_malloc_thresholds()
    terminated = threading.Event()
    try:
        return _run_and_close(_cancel_on_sigterm(main, terminated))
    except asyncio.CancelledError:
        if not terminated.is_set():
            raise
        raise SystemExit(0) from None


def _run_and_close(main: Coroutine[Any, Any, T]) -> T:
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        return runner.run(main)
    finally:
        # Replaces `Runner.close`, which waits forever for a task that does not end.
        close_loop(runner.get_loop())


async def _cancel_on_sigterm(main: Coroutine[Any, Any, T], terminated: threading.Event) -> T:
    task = asyncio.ensure_future(main)

    def stop() -> None:
        terminated.set()
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    return await task


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """Return an event that SIGTERM and SIGINT set, instead of ending the process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _minter(service: str, settings: ProcessSettings) -> TokenMinter | None:
    if settings.signing_key_file is None:
        return None
    try:
        return TokenMinter(service, settings.signing_key_file, audience=settings.token_audience)
    except (OSError, ValueError, TypeError):
        raise SystemExit(
            f"{service}: signing_key_file cannot be read as an Ed25519 or RSA private key"
        ) from None


def _verifier(service: str, settings: ProcessSettings) -> TokenVerifier | None:
    if settings.jwks_url is not None:
        source: JwksFile | JwksUrl = JwksUrl(settings.jwks_url)
    elif settings.jwks_file is not None:
        try:
            source = JwksFile(settings.jwks_file)
        except (OSError, JwksUnreadable):
            raise SystemExit(f"{service}: jwks_file cannot be read as a set of keys") from None
    else:
        return None
    return TokenVerifier(
        source,
        audience=settings.token_audience,
        client_issuers=settings.client_issuers,
        max_lifetime_seconds=settings.max_token_lifetime_seconds,
        oidc=[
            OidcVerifier(issuer, max_lifetime_seconds=settings.max_token_lifetime_seconds)
            for issuer in settings.oidc_issuers
        ],
    )


def _resource(service: str, settings: ProcessSettings) -> Resource:
    """Return the resource of the telemetry.

    OTEL_RESOURCE_ATTRIBUTES adds attributes of the deployment, such as `k8s.pod.name`.
    """
    return Resource.create(
        {
            "service.name": service,
            "service.namespace": "spawnmesh",
            "service.version": version("spawnmesh-runtime"),
            "service.instance.id": str(uuid.uuid4()),
            "deployment.environment.name": settings.environment,
        }
    )
