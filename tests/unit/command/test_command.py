"""The `spawnmesh` command, against services in this process."""

import json

import jwt
import pytest
from spawnmesh.content.v1.message_pb2 import ContentBlock, Message, Role, Text
from spawnmesh.content.v1.thinking_pb2 import ThinkingLevel
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_rpc
from spawnmesh.session.v1.tenant_pb2 import Tenant
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody, Header
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.command.fake_mesh import RUN_ID, SESSION_ID, event, mesh, session_in, unset

__all__ = ["mesh", "unset"]


async def test_spawn_hands_over_files_and_prints_the_session(mesh, tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)

    result = await mesh.run(
        "spawn",
        "Read.",
        "--attach",
        str(tmp_path / "a.txt"),
        "--attach",
        str(tmp_path / "b.txt"),
        "--label",
        "two",
        "--metadata",
        "ticket=17",
        "--metadata",
        "query=a=b",
    )

    assert (result.exit_code, result.stderr) == (0, "")
    assert SESSION_ID in result.stdout
    assert f"{RUN_ID} QUEUED" in result.stdout
    (request,) = mesh.sessions.requests
    assert [item.name for item in request.attachments] == ["a.txt", "b.txt"]
    assert (request.agent_id, request.label, request.mode) == ("default", "two", session_pb2.SESSION_MODE_RUN)
    assert dict(request.metadata) == {"ticket": "17", "query": "a=b"}
    assert mesh.sessions.tenants == ["demo"]


async def test_json_has_the_names_of_the_contract_and_nothing_else_is_printed(mesh):
    result = await mesh.run("spawn", "Work.", "--open", "--json")

    session = json.loads(result.stdout)
    assert session["session_id"] == SESSION_ID
    assert session["latest_run"]["state"] == "RUN_STATE_QUEUED"
    assert session["label"] == ""
    assert mesh.sessions.requests[0].mode == session_pb2.SESSION_MODE_SESSION


async def test_spawn_says_what_becomes_of_its_files(mesh):
    await mesh.run("spawn", "Work.", "--keep")
    await mesh.run("spawn", "Work.")

    said = [request.cleanup for request in mesh.sessions.requests]
    assert said == [session_pb2.CLEANUP_KEEP, session_pb2.CLEANUP_UNSPECIFIED]


async def test_spawn_says_how_much_to_think(mesh):
    said = await mesh.run("spawn", "Work.", "--thinking", "High")
    await mesh.run("spawn", "Work.")
    wrong = await mesh.run("spawn", "Work.", "--thinking", "lots")

    assert said.exit_code == 0
    thinking = [request.thinking for request in mesh.sessions.requests]
    assert thinking == [ThinkingLevel.THINKING_LEVEL_HIGH, ThinkingLevel.THINKING_LEVEL_UNSPECIFIED]
    assert wrong.exit_code == 2
    assert "off, minimal, low, medium, high" in " ".join(wrong.stderr.replace("│", "").split())


async def test_spawn_and_wait_prints_the_answer(mesh):
    result = await mesh.run("spawn", "Work.", "--wait")

    assert result.exit_code == 0
    assert result.stdout.rstrip().endswith("done")


async def test_waiting_for_a_run_that_fails_exits_with_1_and_says_why(mesh):
    mesh.sessions.outcome = session_in(
        session_pb2.RUN_STATE_FAILED,
        error_reason=reason_pb2.REASON_ALL_CANDIDATES_FAILED,
        error_message="no model answered",
    )

    result = await mesh.run("wait", SESSION_ID)

    assert result.exit_code == 1
    assert result.stderr == "error: the run ended as FAILED: ALL_CANDIDATES_FAILED: no model answered\n"


async def test_a_wait_that_runs_out_exits_with_1_and_says_how_to_go_on(mesh):
    mesh.sessions.outcome = session_in(session_pb2.RUN_STATE_RUNNING)

    result = await mesh.run("wait", SESSION_ID, "--timeout", "0")

    assert result.exit_code == 1
    assert result.stderr == f"error: not done after 0 s; continue with `spawnmesh wait {SESSION_ID}`\n"


async def test_an_empty_file_is_handed_over(mesh, tmp_path):
    (tmp_path / "__init__.py").touch()

    await mesh.run("spawn", "Work.", "--attach", str(tmp_path / "__init__.py"))

    [request] = mesh.sessions.requests
    [item] = request.attachments
    assert (item.name, item.WhichOneof("source"), item.data) == ("__init__.py", "data", b"")


async def test_watch_prints_an_event_a_line_and_outlasts_a_restart(mesh):
    run, closed = session_pb2.SESSION_EVENT_KIND_RUN, session_pb2.SESSION_EVENT_KIND_CLOSED
    mesh.sessions.events = [event(1, run), event(2, run), event(3, closed)]
    mesh.sessions.broken_after = {2: MeshError(Reason.DRAINING, "stopping", retry_after_seconds=0.01)}

    told = await mesh.run("watch", SESSION_ID)
    rest = await mesh.run("watch", SESSION_ID, "--after", "2.0", "--json")

    assert told.stdout.splitlines() == [f"{SESSION_ID}  trace ", "RUN", "RUN", "CLOSED"]
    assert [json.loads(line)["session_event"]["number"] for line in rest.stdout.splitlines()] == ["3"]


async def test_sessions_are_listed_up_to_the_limit(mesh):
    mesh.sessions.known = [session_pb2.Session(session_id=f"ses_{number:026}") for number in range(4)]

    table = await mesh.run("sessions", "--limit", "3")
    asked = ["--filter", "state = ACTIVE", "--order-by", "create_time", "--view", "full"]
    listed = await mesh.run("sessions", *asked, "--json")

    assert [f"ses_{number:026}" in table.stdout for number in range(4)] == [True, True, True, False]
    assert len(json.loads(listed.stdout)["sessions"]) == 4
    assert mesh.sessions.requests[-1] == session_rpc.ListSessionsRequest(
        filter="state = ACTIVE",
        order_by="create_time",
        view=session_pb2.SESSION_VIEW_FULL,
        page_size=50,
    )


async def test_send_and_kill_report_their_effect(mesh):
    sent = await mesh.run("send", SESSION_ID, "More.", "--request-id", "r")
    killed = await mesh.run("kill", SESSION_ID)

    assert sent.stdout == f"{RUN_ID} will read it\n"
    assert killed.stdout == "ended; runs killed: 2\n"
    assert (mesh.sessions.requests[0].request_id, mesh.sessions.requests[0].text) == ("r", "More.")


async def test_a_transcript_is_shown_without_what_could_command_the_terminal(mesh):
    block = ContentBlock(text=Text(text="first\nsecond [bold]\x1b]0;title\x07"))
    message = Message(role=Role.ROLE_ASSISTANT, model="openai/x", content=[block])
    mesh.transcript.entries = [
        Entry(seq=1, body=EntryBody(header=Header())),
        Entry(seq=2, body=EntryBody(message=message)),
    ]

    shown = await mesh.run("transcript", "show", SESSION_ID)
    listed = await mesh.run("transcript", "show", SESSION_ID, "--json")

    assert [line.rstrip() for line in shown.stdout.splitlines()] == [
        "   1    header",
        "   2    assistant (openai/x)",
        "first",
        "second [bold]\\x1b]0;title\\x07",
    ]
    assert [json.loads(line)["seq"] for line in listed.stdout.splitlines()] == ["1", "2"]


async def test_tenants_are_made_and_listed_with_an_operators_token(mesh):
    created = await mesh.run("tenant", "create", "acme", "--name", "Acme")
    listed = await mesh.run("tenant", "list", "--json")

    assert created.exit_code == 0
    assert json.loads(listed.stdout)["tenants"][0]["display_name"] == "Acme"


async def test_every_tenant_is_listed_however_many_pages_there_are(mesh):
    mesh.tenants.created = [Tenant(tenant_id=f"tenant-{number}") for number in range(5)]

    listed = await mesh.run("tenant", "list", "--json")

    assert [one["tenant_id"] for one in json.loads(listed.stdout)["tenants"]] == [
        f"tenant-{n}" for n in range(5)
    ]


async def test_a_token_made_here_opens_the_mesh_for_its_tenant(mesh, monkeypatch):
    made = await mesh.run("--tenant", "acme", "token", "--hours", "1")
    monkeypatch.setenv("SPAWNMESH_TOKEN", made.stdout.strip())

    killed = await mesh.run("kill", SESSION_ID)
    refused = await mesh.run("tenant", "list")

    assert killed.exit_code == 0
    assert mesh.sessions.tenants == ["acme"]
    assert refused.stderr.startswith("error: CALLER_NOT_ALLOWED: ")
    assert "spawnmesh token --admin" in refused.stderr


async def test_an_operators_token_names_no_tenant(mesh):
    made = await mesh.run("token", "--admin", "--json")

    claims = jwt.decode(json.loads(made.stdout)["token"], options={"verify_signature": False})
    assert claims["kind"] == "admin"
    assert "tenant" not in claims
    assert claims["exp"] - claims["iat"] == 12 * 3600


async def test_token_of_a_harness_names_its_tenants_and_agents(mesh):
    limits = ("--tenant", "acme", "--tenant", "globex", "--agent", "reviewer")
    made = await mesh.run("token", "--runner", *limits, "--subject", "harness", "--hours", "1", "--json")

    answer = json.loads(made.stdout)
    claims = jwt.decode(answer["token"], options={"verify_signature": False})
    assert (claims["kind"], claims["sub"]) == ("runner", "harness")
    assert (claims["tenants"], claims["agents"]) == (["acme", "globex"], ["reviewer"])
    assert "tenant" not in claims
    assert claims["exp"] - claims["iat"] == 3600
    assert (answer["tenants"], answer["agents"]) == (["acme", "globex"], ["reviewer"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("--runner",),
        ("--runner", "--agent", "reviewer"),
        ("--runner", "--admin", "--tenant", "acme"),
        ("--tenant", "acme", "--tenant", "globex"),
        ("--agent", "reviewer"),
        ("--runner", "--tenant", "*"),
        ("--runner", "--tenant", "acme", "--agent", "*"),
        ("--runner", *(f"--tenant=t-{number}" for number in range(33))),
    ],
)
async def test_token_that_the_mesh_would_refuse_is_not_made(mesh, arguments):
    made = await mesh.run("token", *arguments)

    assert (made.exit_code, made.stdout) == (2, "")


async def test_session_for_a_harness_is_external(mesh):
    await mesh.run("spawn", "Work.", "--external")

    (request,) = mesh.sessions.requests
    assert request.runtime == session_pb2.RUNTIME_EXTERNAL
