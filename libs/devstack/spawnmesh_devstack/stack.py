"""A whole mesh on this machine: every part is a real process, and all of them end with the
block.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from spawnmesh_core.task_group import run_concurrently
from spawnmesh_runtime.tokens import TokenMinter

from spawnmesh_devstack import members
from spawnmesh_devstack.console import CONSOLE
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.gateway import envoy_program, gateway_member
from spawnmesh_devstack.health import until_dependencies_serve, until_listening, until_serving, until_working
from spawnmesh_devstack.keys import make_keys
from spawnmesh_devstack.members import RUNNER, SERVICES, Member, Readiness, Surroundings
from spawnmesh_devstack.mesh_file import sole_use, write_mesh_file
from spawnmesh_devstack.models import scripted_config, scripted_environment
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.postgres import NewPostgres, Postgres
from spawnmesh_devstack.prepare import (
    GATEWAY,
    OTLP,
    S3,
    SCRIPTED_MODEL,
    TRACES,
    choose_ports,
    prepare_schemas,
    write_router_config,
)
from spawnmesh_devstack.processes import ChildProcess, Command, Execute, execute, start_process
from spawnmesh_devstack.s3 import S3Server
from spawnmesh_devstack.scraping import Scraping
from spawnmesh_devstack.scripted_model import PAUSE_SECONDS
from spawnmesh_devstack.service_roles import DATABASE, ServiceDsn
from spawnmesh_devstack.trace_server import TraceAccess, make_headers
from spawnmesh_devstack.watchdog import Watchdog

_NEEDS_S3 = "attachment-blob"
_SINK = "otlp-sink"
_STOP_SECONDS = 5.0  # a process gives its calls one second, and then sends its spans
_TOKEN_SECONDS = 12 * 3600.0


class Stack:
    """A mesh. `processes` has all processes by name, except those of PostgreSQL and S3.

    Leaving the context stops them: runners first, because they depend on the rest; the trace sink
    last, because all send to it.
    """

    def __init__(
        self,
        data_dir: Path,
        surroundings: Surroundings,
        postgres: Postgres,
        s3: S3Server,
        watchdog: Watchdog,
        execute: Execute,
        scraping: Scraping | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.postgres = postgres
        self.s3 = s3
        self.processes: dict[str, ChildProcess] = {}
        self.gateway: str | None = None
        """The one `host:port` for all services, once `start_gateway` has started it."""
        self.console: str | None = None
        """The URL of the console, once `start_console` has started it."""
        self.scraping = scraping
        """The metrics of the processes, if they are offered."""
        self._surroundings = surroundings
        self._members: dict[str, Member] = {}
        self._watchdog = watchdog
        self._execute = execute

    @property
    def targets(self) -> Mapping[str, str]:
        """Each service's `host:port` by its kebab id; for several replicas all of them, in the form
        that gRPC uses in turn.
        """
        return self._surroundings.targets

    @property
    def keys(self) -> Path:
        """The directory with every issuer's key and `jwks.json`."""
        return self._surroundings.keys

    @property
    def traces_file(self) -> Path:
        """The file of spans, in the format of `span_file`."""
        return self.data_dir / "traces.otlp"

    @property
    def trace_access(self) -> TraceAccess:
        """The way to the traces over HTTP."""
        return self._surroundings.trace_access

    @property
    def workspace_root(self) -> Path:
        """The directory of the runners' workspaces."""
        return self._surroundings.workspace_root

    @property
    def otlp_endpoint(self) -> str:
        """The endpoint for spans."""
        return self._surroundings.otlp_endpoint

    @property
    def databases(self) -> Mapping[str, ServiceDsn]:
        """The database access of each service, by its snake name."""
        return self._surroundings.databases

    @property
    def superuser_dsn(self) -> str:
        """The mesh's database for the superuser, whom no row policy restricts."""
        return urlunsplit(urlsplit(self.postgres.superuser_dsn)._replace(path=f"/{DATABASE}"))

    @property
    def pids(self) -> dict[str, int]:
        """The id of every process by its name, including PostgreSQL and S3."""
        storage = (self.postgres.process, *self.s3.processes)
        return {process.name: process.pid for process in (*storage, *self.processes.values())}

    def admin_token(self) -> str:
        """Return a token for an operator, valid for twelve hours."""
        return TokenMinter("client", self.keys / "client.pem").admin_token("devstack", _TOKEN_SECONDS)

    def client_token(self, tenant_id: str, seconds: float = _TOKEN_SECONDS) -> str:
        """Return a token for a client of the tenant, valid for twelve hours or for `seconds`."""
        return TokenMinter("client", self.keys / "client.pem").client_token(tenant_id, "devstack", seconds)

    async def start(self, *several: Member) -> None:
        """Start processes in parallel; return when all are ready. Raises StartFailed, and
        StackError for a name in use.
        """
        for member in several:
            if member.name in self._members:
                raise StackError(f"there is a process {member.name} already")
            self._members[member.name] = member
        await run_concurrently(self._launch(member) for member in several)

    async def until_connected(self) -> None:
        """Wait until each process with a health check reaches the services. Raises StartFailed."""
        await run_concurrently(
            until_dependencies_serve(self.processes[one.name], one.port, SERVICES)
            for one in self._members.values()
            if one.readiness is Readiness.GRPC and one.port is not None
        )

    async def start_runner(self) -> ChildProcess:
        """Start one more runner: `runner`, `runner-2` and so on."""
        number = 1 + sum(name.partition("-")[0] == RUNNER for name in self._members)
        name = RUNNER if number == 1 else f"{RUNNER}-{number}"
        await self.start(members.runner_member(name, free_ports(1)[0], self._surroundings))
        return self.processes[name]

    async def start_gateway(self, port: int | None = None, allowed_origins: tuple[str, ...] = ()) -> str:
        """Start the gateway, which refuses browsers of other origins, and return its address.

        Raises StackError where Envoy cannot be had.
        """
        chosen = free_ports(1)[0] if port is None else port
        folder = self.data_dir / GATEWAY
        await self.start(gateway_member(envoy_program(), chosen, self.targets, folder, allowed_origins))
        self.gateway = f"{LOOPBACK}:{chosen}"
        self.write_down()
        return self.gateway

    async def start_console(self, port: int | None = None) -> str:
        """Start the console, and return its address, such as `http://127.0.0.1:8700`."""
        chosen = free_ports(1)[0] if port is None else port
        await self.start(members.console_member(chosen, self._surroundings))
        self.console = f"http://{LOOPBACK}:{chosen}"
        self.write_down()
        return self.console

    async def restart(self, name: str) -> ChildProcess:
        """Stop a process in order, if it still runs, and start it again on the same port."""
        await self.processes[name].stop(_STOP_SECONDS)
        process = await self._launch(self._members[name])
        self.write_down()
        return process

    async def restart_storage(self, part: Postgres | S3Server) -> None:
        """Stop PostgreSQL or S3, if it still runs, and start it again on the same data and
        address.
        """
        await part.stop()
        await part.start()
        self.write_down()

    def write_down(self) -> None:
        """Write the addresses of everything for other programs."""
        write_mesh_file(
            self.data_dir,
            targets=self.targets,
            gateway=self.gateway,
            console=self.console,
            keys=self.keys,
            traces=self.traces_file,
            otlp=self.otlp_endpoint,
            pids=self.pids,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ranks: tuple[list[ChildProcess], list[ChildProcess], list[ChildProcess]] = ([], [], [])
        for name, process in self.processes.items():
            is_client = name.partition("-")[0] in (RUNNER, GATEWAY, CONSOLE)
            ranks[0 if is_client else 2 if name == _SINK else 1].append(process)
        for rank in ranks:
            await asyncio.gather(*(process.stop(_STOP_SECONDS) for process in rank))

    async def _launch(self, member: Member) -> ChildProcess:
        since = await self._database_time() if member.readiness is Readiness.JOBS else None
        log_file = self.data_dir / "logs" / f"{member.name}.log"
        measured = self.scraping.variables(member) if self.scraping else {}
        env = {**member.env, **measured}
        command = Command(member.name, member.argv, log_file, env=env, working_directory=self.data_dir)
        self.processes[member.name] = process = start_process(command, self._watchdog, self._execute)
        if since is not None:
            await until_working(process, self.superuser_dsn, since)
        elif member.port is not None and member.readiness is Readiness.GRPC:
            await until_serving(process, member.port)
        elif member.port is not None:
            await until_listening(process, member.port)
        return process

    async def _database_time(self) -> datetime:
        async with await psycopg.AsyncConnection.connect(self.superuser_dsn) as connection:
            row = await (await connection.execute("select clock_timestamp()")).fetchone()
            assert row is not None
            time: datetime = row[0]
            return time


def _nothing(_stack: Stack) -> None:
    return


@asynccontextmanager
async def open_stack(
    data_dir: Path,
    report: Callable[[str], None],
    *,
    runner_count: int = 1,
    replicas: int = 1,
    router_config: Mapping[str, Any] | None = None,
    model_pause_seconds: float = PAUSE_SECONDS,
    ports: Mapping[str, int] | None = None,
    environment: Mapping[str, str] | None = None,
    before_start: Callable[[Stack], None] = _nothing,
    execute: Execute = execute,
    new_postgres: NewPostgres = Postgres,
    metrics_ports: Iterator[int] | None = None,
    forward_otlp: str | None = None,
) -> AsyncIterator[Stack]:
    """Open a mesh that keeps its data in `data_dir`. Without a router configuration, the scripted
    model is started and configured, with a pause between two pieces of an answer.

    `replicas` is the number of each service and each worker. `ports` requests ports by name (a
    service's, for its first replica; `s3`, `otlp`, `traces`, `scripted-model`); the others are free
    ones. A variable in `environment` goes to the service whose prefix it has, one of OpenTelemetry
    to all, any other to model-router only. `before_start` gets the mesh before its processes start,
    so that what `environment` names can find them. `execute` starts each process of the mesh but
    PostgreSQL and S3, and `new_postgres` makes the server. With `metrics_ports`, each process
    offers its metrics on one of them, and `prometheus.yaml` of the data directory makes Prometheus
    read them. All telemetry also goes to the receiver at `forward_otlp`, a `host:port`.

    Raises StackError.
    """
    async with AsyncExitStack() as exits:
        data_dir = exits.enter_context(sole_use(data_dir))
        watchdog = exits.enter_context(Watchdog())
        port_of = choose_ports(ports or {})
        postgres = new_postgres(data_dir / "postgres", data_dir / "logs" / "postgres.log", watchdog, report)
        ports_of = _ports_of_services(port_of, replicas)
        s3 = S3Server(data_dir / "s3", data_dir / "logs" / "s3.log", watchdog, report, port_of.get(S3))
        config = scripted_config(port_of[SCRIPTED_MODEL]) if router_config is None else router_config
        make_keys(data_dir / "keys")
        around = Surroundings(
            keys=data_dir / "keys",
            otlp_endpoint=f"http://{LOOPBACK}:{port_of[OTLP]}",
            trace_access=TraceAccess(port_of[TRACES], make_headers(data_dir / "keys")),
            span_journal_dir=data_dir / "spans",
            databases={},
            targets={service: _target(ports) for service, ports in ports_of.items()},
            s3=s3,
            router_config_file=write_router_config(data_dir, config),
            workspace_root=data_dir / "workspaces",
            extra={**(scripted_environment() if router_config is None else {}), **(environment or {})},
        )
        scraping = Scraping(data_dir / "prometheus.yaml", metrics_ports) if metrics_ports else None
        stack = Stack(data_dir, around, postgres, s3, watchdog, execute, scraping)
        before_start(stack)
        for part in (postgres, s3, stack):
            exits.push_async_exit(part)
        migrated = asyncio.Event()

        def serving(name: str) -> list[Member]:
            return [
                members.service_member(name, port, around, number)
                for number, port in enumerate(ports_of[name], 1)
            ]

        async def start_on_database() -> None:
            await postgres.start()
            around.databases.update(await prepare_schemas(postgres.superuser_dsn, report))
            migrated.set()
            report("starting the services")
            others = [member for name in SERVICES if name != _NEEDS_S3 for member in serving(name)]
            for number in range(1, replicas + 1):
                others += [members.worker_member(around, number), members.hook_worker_member(around, number)]
                others.append(members.transcript_worker_member(around, number))
            sink = members.sink_member(port_of[OTLP], stack.traces_file, around.trace_access, forward_otlp)
            others.append(sink)
            if router_config is None:
                others.append(members.scripted_model_member(port_of[SCRIPTED_MODEL], model_pause_seconds))
            await run_concurrently(
                [stack.start(*others), *(stack.start_runner() for _ in range(runner_count))]
            )

        async def start_on_s3() -> None:
            await s3.start()
            await migrated.wait()
            collectors = [members.blob_worker_member(around, number) for number in range(1, replicas + 1)]
            await stack.start(*serving(_NEEDS_S3), *collectors)

        await run_concurrently([start_on_database(), start_on_s3()])
        await stack.until_connected()
        stack.write_down()
        report("the mesh is ready")
        yield stack


def _ports_of_services(port_of: Mapping[str, int], replicas: int) -> dict[str, list[int]]:
    """Return a port for each replica of each service; the first one is the chosen one."""
    more = iter(free_ports((replicas - 1) * len(SERVICES)))
    return {service: [port_of[service], *islice(more, replicas - 1)] for service in SERVICES}


def _target(ports: Sequence[int]) -> str:
    """Return the target for a channel."""
    addresses = ",".join(f"{LOOPBACK}:{port}" for port in ports)
    return addresses if len(ports) == 1 else f"ipv4:{addresses}"
