"""A process of the mesh: what it is called, its keys, its telemetry and its logs. Nothing happens at import."""

import asyncio
import gc
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
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import Tracer
from spawnmesh_core.cancellation import keep_cancellations

from spawnmesh_runtime.ending import close
from spawnmesh_runtime.health import Health, open_health
from spawnmesh_runtime.jwks import JwksFile, JwksUnreadable, JwksUrl
from spawnmesh_runtime.logs import write_json_logs
from spawnmesh_runtime.memory import give_large_blocks_back
from spawnmesh_runtime.metrics import NO_METRICS, Metrics, open_metrics
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.telemetry import use_tracer
from spawnmesh_runtime.tls_files import TlsFiles, measure_expiry, tls_files
from spawnmesh_runtime.tokens import TokenMinter, TokenVerifier

T = TypeVar("T")

_SWITCH_SECONDS = 0.0005
"""How long a thread that computes keeps the interpreter from the event loop. Python's own 5 ms are waited each time that the loop wakes up while
spans are made ready to be sent, or a large message is."""


@dataclass(frozen=True, slots=True)
class Process:
    """What servers and channels of a process are built from. `service` is the kebab id.

    `minter` is None without `signing_key_file`, `verifier` without `jwks_file` or `jwks_url`. `tls` is what the settings name, for all
    connections of the process, and None for plaintext.
    """

    service: str
    settings: ProcessSettings
    minter: TokenMinter | None
    verifier: TokenVerifier | None
    tracer: Tracer
    metrics: Metrics = NO_METRICS
    health: Health = field(default_factory=Health)
    tls: TlsFiles | None = field(init=False)

    def __post_init__(self) -> None:
        # Not for a caller to leave out: that would be plaintext where the settings say TLS.
        object.__setattr__(self, "tls", tls_files(self.settings))


@asynccontextmanager
async def start_process(service: str, settings: ProcessSettings) -> AsyncIterator[Process]:
    """Sets up logs, tracing and metrics, reads the keys, answers health checks, and on the way out sends the spans and metrics that are left.

    Ends the process with one line where a key file, a TLS file or the JWKS file cannot be read, or a port cannot be had.
    """
    write_json_logs(service, settings.log_level)
    minter, verifier = _minter(service, settings), _verifier(service, settings)
    resource = _resource(service, settings)
    provider = _tracer_provider(settings, resource)
    tracer = provider.get_tracer("spawnmesh")
    use_tracer(tracer)
    measuring = ExitStack()
    try:
        metrics = measuring.enter_context(open_metrics(service, settings, resource))
        async with open_health(service, settings.health_listen) as health:
            process = Process(service, settings, minter, verifier, tracer, metrics, health)
            if process.tls is not None:
                measure_expiry(metrics.meter, process.tls)
            yield process
    finally:
        # Side by side: each waits for a collector that does not answer.
        await asyncio.gather(asyncio.to_thread(provider.shutdown), asyncio.to_thread(measuring.close))


def keep_what_is_there() -> None:
    """What a process has when it begins to work it has for good: looking through it for garbage again and again slows whatever it does."""
    gc.collect()
    gc.freeze()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a process's main coroutine on uvloop until it returns.

    A SIGTERM that nothing has taken over yet cancels it, and ends the process with exit code 0: as the first process of a container it would not
    be ended by that signal otherwise. Tasks that main leaves are cancelled, and have some seconds to end in; that changes nothing about what
    main gave or raised.
    """
    keep_cancellations()
    sys.setswitchinterval(_SWITCH_SECONDS)
    give_large_blocks_back()
    told = threading.Event()
    try:
        return _run_and_close(_cancelled_when_told(main, told))
    except asyncio.CancelledError:
        if not told.is_set():
            raise
        raise SystemExit(0) from None


def _run_and_close(main: Coroutine[Any, Any, T]) -> T:
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        return runner.run(main)
    finally:
        # In the place of the runner's own closing, which waits for ever for a task that does not end.
        close(runner.get_loop())


async def _cancelled_when_told(main: Coroutine[Any, Any, T], told: threading.Event) -> T:
    task = asyncio.ensure_future(main)

    def stop() -> None:
        told.set()
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    return await task


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set, instead of ending the process."""
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
        raise SystemExit(f"{service}: signing_key_file cannot be read as an Ed25519 or RSA private key") from None


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
    return TokenVerifier(source, audience=settings.token_audience, client_issuers=settings.client_issuers)


def _resource(service: str, settings: ProcessSettings) -> Resource:
    """Who sends telemetry. Attributes such as `k8s.pod.name` are taken from OTEL_RESOURCE_ATTRIBUTES, where a deployment puts them."""
    return Resource.create(
        {
            "service.name": service,
            "service.namespace": "spawnmesh",
            "service.version": version("spawnmesh-runtime"),
            "service.instance.id": str(uuid.uuid4()),
            "deployment.environment.name": settings.environment,
        }
    )


def _tracer_provider(settings: ProcessSettings, resource: Resource) -> TracerProvider:
    """Without an endpoint nothing is recorded, but ids are made, so that logs and errors have a trace id all the same."""
    sampler: Sampler = ParentBased(ALWAYS_ON) if settings.otlp_endpoint else ALWAYS_OFF
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    if settings.otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter,
        )  # A tenth of what a command takes to start.

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.otlp_endpoint, timeout=5)))
    return provider
