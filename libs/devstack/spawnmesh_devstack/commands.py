"""The commands `up`, `console` and `demo` of `spawnmesh`.

Their imports happen when they run, so that every other command starts without them.
"""

import json
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from spawnmesh_command.cli.run import reported, settings_of
from spawnmesh_command.cli.tokens import RoleName
from spawnmesh_command.endpoints import find_endpoints, token_minter
from spawnmesh_runtime.caller import ROLES
from spawnmesh_runtime.interruptible import run_interruptible

from spawnmesh_devstack.failures import StackError

_WIDTH_WITHOUT_TERMINAL = 140
_INTERRUPTED = 130  # the exit code that a shell gives to a program that Ctrl-C ended

T = TypeVar("T")

Model = Annotated[
    str | None,
    typer.Option(
        help="`smollm2`: a small real model on this machine; else a model of the provider there is a key for."
    ),
]


def add_commands(app: typer.Typer) -> None:
    """Add `up`, `console` and `demo` to the command."""
    app.command()(up)
    app.command()(console)
    app.command()(demo)


def up(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Option(help="Where data are kept; SPAWNMESH_DATA, else `.data`.")
    ] = None,
    model: Model = None,
    port: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PORT",
            help="A port for a service, `console`, `gateway`, `s3`, `otlp` or `traces`; may be repeated.",
        ),
    ] = None,
    mcp_config: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            resolve_path=True,
            help="MCP servers that agents may name; see docs/howto/mcp.md.",
        ),
    ] = None,
    allowed_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let pages of this origin call the gateway, e.g. https://app.example.com; may be repeated.",
        ),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Also send traces, metrics and logs to this receiver of OTLP/gRPC."
        ),
    ] = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1024,
            max=65_000,
            help="Offer metrics to Prometheus: one port for each process, from this one on.",
        ),
    ] = None,
    trace_content: Annotated[
        bool,
        typer.Option(
            "--trace-content",
            help="Traces of tenants with routing.trace_content have what models and tools read and wrote.",
        ),
    ] = False,
) -> None:
    """Start a whole mesh on this machine and leave it running; Ctrl-C stops it, data stay."""
    from spawnmesh_devstack.up import Telemetry, run_up

    with reported(as_json=False):
        directory = data or settings_of(context).data
    ports = _ports(port or ())
    telemetry = Telemetry(_receiver(otlp), metrics, trace_content)

    def work(console: Console) -> Coroutine[Any, Any, None]:
        return run_up(
            console,
            directory,
            model=model,
            environment=os.environ,
            ports=ports,
            mcp_config=mcp_config,
            allowed_origins=allowed_origin or (),
            telemetry=telemetry,
        )

    _run(work)


def console(
    context: typer.Context,
    role: Annotated[
        RoleName | None,
        typer.Option(help="The highest role of the person in the tenant; operator if not given."),
    ] = None,
    hours: Annotated[float, typer.Option(min=0.01, max=720, help="The time until the sign-in ends.")] = 12.0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the link in a browser.")] = False,
) -> None:
    """Print a link that signs a person in to the console of the mesh on this machine, for the
    tenant of --tenant. It works once.
    """
    from spawnmesh_devstack.console import running_console, sign_in_link

    with reported(as_json=False):
        settings = settings_of(context)
        minter = token_minter(find_endpoints(settings))
    token = minter.client_token(settings.tenant, "console", hours * 3600, role=ROLES[role] if role else None)
    try:
        link = sign_in_link(running_console(settings.data), settings.data, token)
    except StackError as error:
        _print_error(str(error))
        raise typer.Exit(1) from None
    print(link)
    if open_browser and typer.launch(link) != 0:
        _print_error("no browser could be opened: follow the link yourself")


def demo(
    context: typer.Context,
    model: Model = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Start a mesh for it, also while one is up. So does --model.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print the transcript, the trace and each check.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")] = False,
) -> None:
    """Run the main job on real files through every service, and show the proof.

    While `spawnmesh up` runs, the job is done on its mesh, and the console shows it. Otherwise the
    demo starts a mesh of its own, of which nothing stays.
    """
    from spawnmesh_devstack.demo import DemoResult, run_demo
    from spawnmesh_devstack.demo_stage import Shown

    with reported(as_json=False):
        data = None if alone or model else settings_of(context).data
    shown = Shown.NOTHING if as_json else Shown.EVERYTHING if verbose else Shown.SCREEN

    def work(console: Console) -> Coroutine[Any, Any, DemoResult]:
        return run_demo(console, data=data, model=model, environment=os.environ, shown=shown)

    outcome = _run(work, as_json=as_json)
    if as_json:
        print(json.dumps(outcome.report, indent=2))
    if outcome.failed:
        _print_error("not so: " + "; ".join(outcome.failed))
        raise typer.Exit(1)


def _run(work: Callable[[Console], Coroutine[Any, Any, T]], *, as_json: bool = False) -> T:
    """Run a command to its end. Print a failure in one line and exit with code 1."""
    stream = sys.stderr if as_json else sys.stdout  # text for people stays out of a JSON document
    console = Console(file=stream, width=None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL)
    try:
        return run_interruptible(work(console))
    except StackError as error:
        _print_error(str(error))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


def _print_error(line: str) -> None:
    print(f"error: {line}", file=sys.stderr)


def _receiver(asked: str | None) -> str | None:
    host, _, port = (asked or "").rpartition(":")
    if asked is not None and not (host and "/" not in host and port.isdecimal() and 0 < int(port) < 65_536):
        raise typer.BadParameter(f"{asked!r} is not HOST:PORT", param_hint="--otlp")
    return asked


def _ports(asked: Sequence[str]) -> dict[str, int]:
    ports = {}
    for one in asked:
        name, _, number = one.partition("=")
        if not number.isdecimal() or not 0 < int(number) < 65_536:
            raise typer.BadParameter(f"{one!r} is not NAME=PORT", param_hint="--port")
        ports[name] = int(number)
    return ports
