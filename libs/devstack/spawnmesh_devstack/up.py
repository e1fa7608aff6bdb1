"""A mesh that runs until it is told to stop."""

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from spawnmesh_client.wire import connect_wire
from spawnmesh_core.errors import MeshError, refused_with
from spawnmesh_core.reasons import Reason
from spawnmesh_core.task_group import first_failure
from spawnmesh_runtime.process import stop_signals
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import MAX_LIFETIME_SECONDS

from spawnmesh_devstack.call_limits import call_limit_variables
from spawnmesh_devstack.console import CONSOLE, sign_in_link
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.mesh_file import write_token_file
from spawnmesh_devstack.models import Choice, choose
from spawnmesh_devstack.prepare import GATEWAY
from spawnmesh_devstack.restarts import restart_ended
from spawnmesh_devstack.scraping import ports_from
from spawnmesh_devstack.stack import Stack
from spawnmesh_devstack.thinking import open_thinking_stack
from spawnmesh_devstack.typed_command import typed_command

TENANT = "demo"
_USUAL_DATA = Path(".data")
_EXAMPLE_FILE = Path("README.md")


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The receiver of OTLP at a `host:port` that also gets all telemetry, and the first port on
    which the processes offer metrics. With `trace_content`, the operator wants content in traces.
    """

    otlp: str | None = None
    metrics_port: int | None = None
    trace_content: bool = False

    def variables(self) -> dict[str, str]:
        """Return the variables of processes that have content of calls."""
        names = ("MODEL_ROUTER_TRACE_CONTENT_MAX_BYTES", "RUNNER_TRACE_CONTENT_MAX_BYTES")
        return dict.fromkeys(names, str(64 * 1024)) if self.trace_content else {}


NO_TELEMETRY = Telemetry()


async def run_up(
    console: Console,
    data: Path,
    *,
    model: str | None,
    environment: Mapping[str, str],
    ports: Mapping[str, int],
    mcp_config: Path | None = None,
    allowed_origins: Sequence[str] = (),
    telemetry: Telemetry = NO_TELEMETRY,
) -> None:
    """Start a mesh, print how to use it, and stop it at SIGINT or SIGTERM, also during its start.
    Raises StackError.
    """
    choice = await choose(environment, model)
    given = {**call_limit_variables(environment), **telemetry.variables()}
    if mcp_config is not None:
        given["RUNNER_MCP_CONFIG_FILE"] = str(mcp_config)
    try:
        with stop_signals() as stop:
            async with asyncio.TaskGroup() as group:
                staying = group.create_task(
                    _stay_up(console, data, choice, ports, given, tuple(allowed_origins), telemetry)
                )
                stopping = group.create_task(stop.wait())
                await asyncio.wait({staying, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set():
                    console.print("\nstopping; data stay in", str(data))
                for task in (staying, stopping):
                    task.cancel()
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None


async def _stay_up(
    console: Console,
    data: Path,
    choice: Choice,
    ports: Mapping[str, int],
    given: Mapping[str, str],
    allowed_origins: tuple[str, ...],
    telemetry: Telemetry,
) -> None:
    def report(line: str) -> None:
        console.print(line, style="dim", highlight=False)

    async with open_thinking_stack(
        data,
        report,
        choice,
        ports,
        given,
        metrics_ports=None if telemetry.metrics_port is None else ports_from(telemetry.metrics_port),
        forward_otlp=telemetry.otlp,
    ) as stack:
        await make_tenant(stack, TENANT)
        await start_gateway(stack, ports, allowed_origins, report)
        await stack.start_console(ports.get(CONSOLE))
        write_token_file(stack.data_dir, stack.client_token(TENANT, MAX_LIFETIME_SECONDS))
        _show(console, stack, data, choice)
        await restart_ended(stack, lambda line: console.print(line, style="red", soft_wrap=True))


async def make_tenant(stack: Stack, tenant_id: str) -> None:
    """Create the tenant if it does not exist. One whose settings were changed stays as it is.

    Raises StackError.
    """
    try:
        async with connect_wire(
            session=stack.targets["session"], token=stack.admin_token(), settings=ProcessSettings()
        ) as operator:
            await operator.create_tenant(tenant_id)
    except MeshError as error:
        if not refused_with(error, Reason.ALREADY_EXISTS):
            raise StackError(f"the mesh refused to make the tenant {tenant_id}: {error}") from error


async def start_gateway(
    stack: Stack, ports: Mapping[str, int], allowed_origins: tuple[str, ...], report: Callable[[str], None]
) -> None:
    """Start the gateway, or say why the mesh runs without one."""
    try:
        await stack.start_gateway(ports.get(GATEWAY), allowed_origins)
    except StackError as error:
        report(str(error).partition("\n")[0] + "; the mesh runs without it")


def _show(console: Console, stack: Stack, data: Path, choice: Choice) -> None:
    where = "" if data == _USUAL_DATA else f"SPAWNMESH_DATA={shlex.quote(str(stack.data_dir))} "
    command = typed_command()
    table = Table("service", "address", title="The mesh is up", title_justify="left")
    for service, target in stack.targets.items():
        table.add_row(service, target)
    if stack.gateway is not None:
        table.add_row("gateway, for all of them", f"http://{stack.gateway}")
    if stack.console is not None:
        table.add_row("console, for people", stack.console)
    table.add_row("S3", stack.s3.endpoint.endpoint)
    console.print(table)
    if stack.console is not None:
        console.print(f"The console. The link signs in once; `{where}{command} console` prints another:")
        link = sign_in_link(stack.console, stack.data_dir, stack.client_token(TENANT, MAX_LIFETIME_SECONDS))
        console.print(Text(link + "\n"), soft_wrap=True)
    if stack.scraping is not None:
        console.print("Metrics. This lets Prometheus read them from all processes:")
        config, kept = (shlex.quote(str(stack.data_dir / name)) for name in ("prometheus.yaml", "prometheus"))
        command_line = f"prometheus --config.file={config} --storage.tsdb.path={kept}\n"
        console.print(Text(command_line), soft_wrap=True)
    console.print(f"Agents think with {choice.description}.")
    console.print(f"\nA client's token for the tenant {TENANT}, for twelve hours:")
    console.print(Text(stack.client_token(TENANT)), soft_wrap=True)
    console.print("\nA first call, in another terminal, in this directory:")
    has_file = _EXAMPLE_FILE.exists()
    task = f"'What is in the file?' --attach {_EXAMPLE_FILE}" if has_file else "'Say hello.'"
    console.print(Text(f"{where}{command} spawn {task} --wait"), soft_wrap=True)
    console.print("\nCtrl-C stops the mesh. A process that ends by itself is started again.")
