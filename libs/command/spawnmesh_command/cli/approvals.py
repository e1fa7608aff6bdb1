"""Commands for people who approve tool calls of runs, and answer questions of agents."""

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

import typer
from spawnmesh.session.v1 import approval_pb2 as pb
from spawnmesh.session.v1 import approval_service_pb2 as rpc
from spawnmesh.session.v1.approval_service_pb2_grpc import ApprovalServiceStub
from spawnmesh_client.pages import paged
from spawnmesh_client.wire import WireMesh

from spawnmesh_command.cli import completion
from spawnmesh_command.cli.approval_text import STATE_PREFIX, print_approval, print_approvals, state_word
from spawnmesh_command.cli.arguments import ApprovalId
from spawnmesh_command.cli.lists import Limit, print_list
from spawnmesh_command.cli.run import AsJson, call_rpc
from spawnmesh_command.cli.show import print_json, value_of

_STATES = [name.removeprefix(STATE_PREFIX).lower() for name in pb.ApprovalState.keys()[1:]]
_PENDING = "pending"
_call = partial(call_rpc, "session", ApprovalServiceStub)


def add_commands(app: typer.Typer) -> None:
    """Add `approvals list|show|approve|deny|answer`."""
    approvals = typer.Typer(
        no_args_is_help=True, help="Tool calls that wait for a person, and questions of agents."
    )
    approvals.command("list")(list_approvals)
    for command in (show, approve, deny, answer):
        approvals.command()(command)
    app.add_typer(approvals, name="approvals")


def list_approvals(
    context: typer.Context,
    state: Annotated[
        str, typer.Option(help=f"Only those in this state: {', '.join(_STATES)}. Default: {_PENDING}.")
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="In any state.")] = False,
    session: Annotated[
        str,
        typer.Option(
            metavar="SESSION_ID",
            autocompletion=completion.sessions,
            help="Only of this session and its descendants.",
        ),
    ] = "",
    agent: Annotated[
        str, typer.Option(autocompletion=completion.agents, help="Only of sessions with this agent.")
    ] = "",
    tool: Annotated[str, typer.Option(help="Only calls of this tool.")] = "",
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the calls and questions that wait for a person, oldest first."""
    request = rpc.ListApprovalsRequest(
        state=_state(state, every), session_id=session, agent_id=agent, tool_name=tool,
        page_size=min(limit, 500),
    )  # fmt: skip

    def read(mesh: WireMesh) -> AsyncIterator[pb.Approval]:
        peer = mesh.service("session")
        return paged(peer, ApprovalServiceStub(peer.channel).ListApprovals, request, "approvals")

    print_list(context, "approvals", read, print_approvals, limit=limit, as_json=as_json)


def show(context: typer.Context, approval_id: ApprovalId, as_json: AsJson = False) -> None:
    """Show all arguments of a call, or a question, and how to decide."""
    request = rpc.GetApprovalRequest(approval_id=approval_id)
    approval = _call(context, "GetApproval", request, as_json=as_json).approval
    print_json(value_of(approval)) if as_json else print_approval(approval)


def approve(
    context: typer.Context,
    approval_id: ApprovalId,
    arguments: Annotated[
        str, typer.Option(metavar="JSON", help="Call the tool with these arguments instead: a JSON object.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Let a call be made. The run goes on."""
    if arguments and not _is_object(arguments):
        raise typer.BadParameter("is no JSON object", param_hint="--arguments")
    _decide(context, approval_id, as_json, approve=rpc.Approve(arguments_json=arguments))


def deny(
    context: typer.Context,
    approval_id: ApprovalId,
    reason: Annotated[str, typer.Option(help="The model reads it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Refuse a call, or refuse to answer. The run goes on without it."""
    _decide(context, approval_id, as_json, deny=rpc.DenyCall(reason=reason))


def answer(
    context: typer.Context,
    approval_id: ApprovalId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The answer, which the model reads.")],
    as_json: AsJson = False,
) -> None:
    """Answer a question. The run goes on with the answer."""
    _decide(context, approval_id, as_json, answer=rpc.Answer(text=text))


def _decide(context: typer.Context, approval_id: str, as_json: bool, **decision: Any) -> None:
    request = rpc.DecideApprovalRequest(approval_id=approval_id, **decision)
    decided = _call(context, "DecideApproval", request, as_json=as_json)
    if as_json:
        print_json(value_of(decided))
    else:
        print(f"{state_word(decided.approval).lower()}; {decided.run.run_id} goes on")


def _state(word: str, every: bool) -> "pb.ApprovalState.ValueType":
    """Return the state to list. Raise BadParameter for an unknown word, and for two conditions."""
    if every and word:
        raise typer.BadParameter("give --state or --all, not both", param_hint="--all")
    if every:
        return pb.APPROVAL_STATE_UNSPECIFIED
    if word and word not in _STATES:
        raise typer.BadParameter(f"unknown state; known are {', '.join(_STATES)}", param_hint="--state")
    return pb.ApprovalState.Value(STATE_PREFIX + (word or _PENDING).upper())


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
