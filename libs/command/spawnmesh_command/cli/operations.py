"""Commands for operations, the long work of a tenant: list, show, await and cancel them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from google.longrunning.operations_pb2 import Operation as OperationMessage
from rich.console import Console
from rich.text import Text
from spawnmesh_client.operations import OnOperation, Operation, Operations, metadata_of
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli.arguments import OperationName
from spawnmesh_command.cli.run import AsJson, settings_of, with_mesh
from spawnmesh_command.cli.show import console, plain, print_json, print_table, value_of

_OF_A_TENANT = "/tenants/"
"""It is in the names of the operations of operators of the mesh."""


def add_commands(app: typer.Typer) -> None:
    """Add `operations list|get|wait|cancel|delete`."""
    operations = typer.Typer(no_args_is_help=True, help="Long work: follow and cancel it.")
    operations.command("list")(list_operations)
    operations.command()(get)
    operations.command()(wait)
    operations.command()(cancel)
    operations.command()(delete)
    app.add_typer(operations, name="operations")


def list_operations(
    context: typer.Context,
    service: Annotated[str, typer.Option(help="The service that has the operations.")] = "transcript",
    done: Annotated[
        bool | None, typer.Option("--done/--open", help="Only those that are done, or that are not.")
    ] = None,
    of_operators: Annotated[
        bool,
        typer.Option(
            "--of-operators", help="For operators of the mesh: those that they have started on --tenant."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the tenant's operations, newest first."""
    tenant_id = settings_of(context).tenant if of_operators else ""

    async def body(mesh: WireMesh) -> Sequence[Operation]:
        return [one async for one in Operations(mesh).list(service, tenant_id=tenant_id, done=done)]

    listed = with_mesh(context, body, as_json=as_json, admin=of_operators)
    if as_json:
        print_json({"operations": list(map(_fields, listed))})
    else:
        # The operations of operators are on a tenant, which is in their names.
        session = () if of_operators else ("session",)
        rows = (_row(one, with_session=not of_operators) for one in listed)
        print_table(("name", "method", *session, "state", "progress", "since"), rows)


def get(context: typer.Context, name: OperationName, as_json: AsJson = False) -> None:
    """Show an operation as it is now."""

    async def body(mesh: WireMesh) -> Operation:
        return await Operations(mesh).get(name)

    print_operation(with_mesh(context, body, as_json=as_json, admin=_OF_A_TENANT in name), as_json=as_json)


def wait(
    context: typer.Context,
    name: OperationName,
    timeout: Annotated[float | None, typer.Option(help="The longest time to wait, in seconds.")] = None,
    as_json: AsJson = False,
) -> None:
    """Wait until an operation is done, and show it. The exit code is 1 if it failed."""

    async def body(mesh: WireMesh) -> Operation:
        return await Operations(mesh).wait(name, timeout)

    ended = with_mesh(context, body, as_json=as_json, admin=_OF_A_TENANT in name)
    print_operation(ended, as_json=as_json)
    if ended.error is not None:
        raise typer.Exit(1)


def cancel(context: typer.Context, name: OperationName, as_json: AsJson = False) -> None:
    """Let an operation end after its current step. What it has done stays done."""

    async def body(mesh: WireMesh) -> None:
        await Operations(mesh).cancel(name)

    with_mesh(context, body, as_json=as_json, admin=_OF_A_TENANT in name)
    if as_json:
        print_json({})


def delete(context: typer.Context, name: OperationName, as_json: AsJson = False) -> None:
    """Forget an operation that is done."""

    async def body(mesh: WireMesh) -> None:
        await Operations(mesh).delete(name)

    with_mesh(context, body, as_json=as_json, admin=_OF_A_TENANT in name)
    if as_json:
        print_json({})


@contextmanager
def shown_progress(subject: str) -> Iterator[OnOperation]:
    """Show the progress of an operation on a session or a tenant on standard error while the block
    runs, on a terminal.
    """
    terminal = Console(stderr=True, highlight=False)
    if not terminal.is_terminal:
        yield lambda _operation: None
        return
    with terminal.status(plain(subject, keep="")) as status:

        def show(operation: OperationMessage) -> None:
            metadata = metadata_of(operation)
            text = f"{subject}  {_progress(metadata.done_count, metadata.total_count)}"
            if metadata.retry_reason:
                text += f", waits: {metadata.retry_reason}"
            status.update(Text(plain(text, keep="")))

        yield show


def print_operation(operation: Operation, *, as_json: bool) -> None:
    """Print an operation, a field in each line."""
    if as_json:
        print_json(_fields(operation))
        return
    for name, value in _fields(operation).items():
        console().print(Text(plain(f"{name}: {value}", keep="")), soft_wrap=True)


def _fields(operation: Operation) -> dict[str, object]:
    return {
        "name": operation.name,
        "method": operation.method,
        "request": None if operation.request is None else value_of(operation.request),
        "subject": operation.subject,
        "state": _state(operation),
        "done": operation.done,
        "done_count": operation.done_count,
        "total_count": operation.total_count,
        "create_time": operation.create_time.isoformat(),
        "end_time": None if operation.end_time is None else operation.end_time.isoformat(),
        "is_cancellable": operation.is_cancellable,
        "retry_reason": operation.retry_reason,
        "error": None if operation.error is None else str(operation.error),
        "response": None if operation.response is None else value_of(operation.response),
    }


def _row(operation: Operation, *, with_session: bool) -> tuple[str, ...]:
    progress = _progress(operation.done_count, operation.total_count)
    since = operation.create_time.strftime("%Y-%m-%d %H:%M:%S")
    session = (getattr(operation.request, "session_id", ""),) if with_session else ()
    return operation.name, operation.method, *session, _state(operation), progress, since


def _state(operation: Operation) -> str:
    if operation.error is not None:
        return f"failed ({operation.error.reason})"
    if operation.done:
        return "done"
    if operation.cancel_time is not None:
        return "being cancelled"
    return f"waits ({operation.retry_reason})" if operation.retry_reason else "open"


def _progress(done_count: int, total_count: int) -> str:
    return f"{done_count:,} of {total_count:,}" if total_count else f"{done_count:,}"
