"""Commands for a tenant's agents."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import Parse, ParseError
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_core.reasons import Reason

from spawnmesh_command.cli.arguments import AgentId
from spawnmesh_command.cli.confirmation import Yes, confirm
from spawnmesh_command.cli.message_fields import field_problem
from spawnmesh_command.cli.run import AsJson, reported, with_mesh
from spawnmesh_command.cli.show import print_json, print_table, value_of
from spawnmesh_command.endpoints import LocalRefusal

AgentFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="An AgentProfile as JSON; `-` for standard input.")
]
_STANDARD_INPUT = Path("-")


def add_commands(app: typer.Typer) -> None:
    """Add `agent list|show|put|update|delete`."""
    agents = typer.Typer(no_args_is_help=True, help="Agents: prompt, models and tools of sessions.")
    agents.command("list")(list_agents)
    agents.command()(show)
    agents.command()(put)
    agents.command()(update)
    agents.command()(delete)
    app.add_typer(agents, name="agent")


def list_agents(context: typer.Context, as_json: AsJson = False) -> None:
    """List the tenant's agents."""
    agents = with_mesh(context, lambda mesh: mesh.agents(), as_json=as_json)
    if as_json:
        print_json({"agents": [value_of(agent) for agent in agents]})
        return
    print_table(
        ("agent", "models", "tools", "spawns", "mcp servers"),
        (
            (
                agent.agent_id,
                ", ".join(agent.models) or "(primary)",
                ", ".join(agent.tools) or "-",
                ", ".join(agent.spawnable_agents) or "-",
                ", ".join(agent.mcp_servers) or "-",
            )
            for agent in agents
        ),
    )


def show(context: typer.Context, agent_id: AgentId, as_json: AsJson = False) -> None:
    """Show one agent as `agent put` reads it:

    JSON over several lines, or in one line with --json.
    """
    agent = value_of(with_mesh(context, lambda mesh: mesh.agent(agent_id), as_json=as_json))
    print_json(agent) if as_json else print(json.dumps(agent, indent=2))


def put(
    context: typer.Context,
    file: AgentFile,
    as_json: AsJson = False,
) -> None:
    """Create an agent, or replace all of it. Runs that are claimed from now on use it.

    If the file has an etag, an agent that has changed since is refused.
    """
    with reported(as_json=as_json):
        agent = _read(file)
    written = with_mesh(context, lambda mesh: mesh.put_agent(agent), as_json=as_json)
    print_json(value_of(written)) if as_json else print(written.agent_id)


def update(
    context: typer.Context,
    file: AgentFile,
    fields: Annotated[
        list[str] | None,
        typer.Option("--field", help="A field to change; may be repeated. Else those of the file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change the fields of an agent that a file has, and nothing else.

    A field that is named and not in the file gets its default.
    """
    with reported(as_json=as_json):
        agent = _read(file)
    written = with_mesh(context, lambda mesh: mesh.update_agent(agent, fields or ()), as_json=as_json)
    print_json(value_of(written)) if as_json else print(written.agent_id)


def delete(
    context: typer.Context,
    agent_id: AgentId,
    etag: Annotated[str, typer.Option(help="Only if the agent still has this etag.")] = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete an agent, if it exists. Runs of its sessions fail if they are claimed from now on."""
    confirm(f"Delete the agent {agent_id}?", yes=yes)
    with_mesh(context, lambda mesh: mesh.delete_agent(agent_id, etag=etag), as_json=as_json)
    if as_json:
        print_json({"deleted": agent_id})


def _read(file: Path) -> AgentProfile:
    """Read the profile. Raises LocalRefusal if the file holds none."""
    try:
        text = sys.stdin.buffer.read() if file == _STANDARD_INPUT else file.read_bytes()
        if problem := field_problem(json.loads(text), AgentProfile.DESCRIPTOR, in_json=True):
            raise LocalRefusal(Reason.INVALID_REQUEST, f"{file} is no AgentProfile: {problem}")
        return Parse(text, AgentProfile())
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror or error}"
    except (ParseError, ValueError, RecursionError) as error:
        message = f"{file} is no AgentProfile in JSON: {error}"
    raise LocalRefusal(Reason.INVALID_REQUEST, message)
