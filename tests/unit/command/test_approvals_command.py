"""The command `spawnmesh approvals`, and how other commands say that a run waits for a person."""

import json

import pytest
from spawnmesh.session.v1 import approval_pb2, session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.command.approvals import mail, question
from tests.support.command.fake_mesh import SESSION_ID, FakeMesh, mesh, session_in, unset

__all__ = ["mesh", "unset"]

APPROVAL_ID = new_id(IdKind.APPROVAL)
LINE = f"waits for approval {APPROVAL_ID}: spawnmesh approvals show {APPROVAL_ID}\n"


def waiting_session() -> session_pb2.Session:
    return session_in(session_pb2.RUN_STATE_WAITING_APPROVAL, approval_id=APPROVAL_ID)


async def test_list_has_a_row_for_each_call_and_question(mesh: FakeMesh) -> None:
    call, asked = mail(reason="policy of the agent"), question("Which\ncolour?", "red")
    mesh.approvals.known = [call, asked, mail()]

    result = await mesh.run("approvals", "list")

    assert (result.exit_code, result.stderr) == (0, "")
    _, first, second, third = result.stdout.splitlines()
    for shown in (call.approval_id, "3 h left", call.session_id, "clerk", "send_mail", "ada@example.com"):
        assert shown in first
    assert (asked.approval_id in second, "Which colour?" in second) == (True, True)
    assert mesh.approvals.known[2].approval_id in third
    assert {one.state for one in mesh.approvals.requests} == {approval_pb2.APPROVAL_STATE_PENDING}


async def test_list_takes_a_state_a_session_an_agent_and_a_tool(mesh: FakeMesh) -> None:
    mesh.approvals.known = [mail() for _ in range(5)]
    mesh.approvals.known[0].state = approval_pb2.APPROVAL_STATE_DENIED
    mesh.approvals.known[0].decided_by = "ada"

    some = await mesh.run(
        *("approvals", "list", "--state", "denied", "--session", SESSION_ID, "--agent", "clerk"),
        *("--tool", "send_mail", "--limit", "3", "--json"),
    )
    every = await mesh.run("approvals", "list", "--all")

    assert len(json.loads(some.stdout)["approvals"]) == 3
    request, *_, last = mesh.approvals.requests
    assert request.state == approval_pb2.APPROVAL_STATE_DENIED
    assert (request.session_id, request.agent_id, request.tool_name) == (SESSION_ID, "clerk", "send_mail")
    assert last.state == approval_pb2.APPROVAL_STATE_UNSPECIFIED
    assert "DENIED by ada" in every.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("list", "--state", "open"), "known are pending, approved, denied, answered, expired, withdrawn"),
        (("list", "--state", "denied", "--all"), "not both"),
        (("approve", APPROVAL_ID, "--arguments", "[1]"), "is no JSON object"),
        (("approve", APPROVAL_ID, "--arguments", "{"), "is no JSON object"),
    ],
)
async def test_wrong_option_is_refused_before_any_call(
    mesh: FakeMesh, options: tuple[str, ...], said: str
) -> None:
    result = await mesh.run("approvals", *options)

    assert (result.exit_code, said in " ".join(result.stderr.replace("│", "").split())) == (2, True)
    assert mesh.approvals.requests == []


async def test_show_prints_all_arguments_and_what_to_type(mesh: FakeMesh) -> None:
    body = "x" * 5000
    call = mail(json.dumps({"to": "Zoë", "body": body}), reason="policy of the agent")
    mesh.approvals.known = [call]

    result = await mesh.run("approvals", "show", call.approval_id)
    document = json.loads((await mesh.run("approvals", "show", call.approval_id, "--json")).stdout)

    assert f'arguments\n{{\n  "to": "Zoë",\n  "body": "{body}"\n}}\n' in result.stdout
    for shown in ("send_mail", "policy of the agent", "3 h left", "then it is denied"):
        assert shown in result.stdout
    assert f"spawnmesh approvals approve {call.approval_id} [--arguments JSON]\n" in result.stdout
    assert f"spawnmesh approvals deny {call.approval_id} [--reason TEXT]\n" in result.stdout
    assert document["tool_call"]["arguments_json"] == call.tool_call.arguments_json


async def test_show_says_that_an_approval_will_be_escalated_or_was(mesh: FakeMesh) -> None:
    fresh, escalated = mail(), mail()
    fresh.on_expiry = escalated.on_expiry = approval_pb2.EXPIRY_POLICY_ESCALATE
    escalated.escalate_time.FromSeconds(1_800_000_000)
    mesh.approvals.known = [fresh, escalated]

    before = (await mesh.run("approvals", "show", fresh.approval_id)).stdout
    after = (await mesh.run("approvals", "show", escalated.approval_id)).stdout

    then = "then it is escalated: it waits for as long again, and webhooks are told"
    assert then in " ".join(before.split())
    assert "as no person had decided" not in before
    assert then not in " ".join(after.split())
    assert "then it is denied, and the run goes on" in " ".join(after.split())
    assert "as no person had decided" in " ".join(after.split())


async def test_show_prints_a_question_with_its_choices(mesh: FakeMesh) -> None:
    asked = question("Which colour?", "red", "blue")
    mesh.approvals.known = [asked]

    result = await mesh.run("approvals", "show", asked.approval_id)

    assert "question\nWhich colour?\n\nchoices\n- red\n- blue\n" in result.stdout
    assert f"spawnmesh approvals answer {asked.approval_id} TEXT\n" in result.stdout
    assert "approvals approve" not in result.stdout


async def test_show_of_a_decided_call_says_who_decided_and_offers_nothing(mesh: FakeMesh) -> None:
    call = mail()
    call.state, call.decided_by = approval_pb2.APPROVAL_STATE_APPROVED, "ada"
    call.edited_arguments_json = '{"to": "bob@example.com"}'
    mesh.approvals.known = [call]

    result = await mesh.run("approvals", "show", call.approval_id)

    assert "APPROVED by ada" in result.stdout
    assert 'approved arguments\n{\n  "to": "bob@example.com"\n}\n' in result.stdout
    assert "spawnmesh approvals" not in result.stdout


async def test_text_of_an_agent_controls_no_terminal(mesh: FakeMesh) -> None:
    call = mail('{"to": "\x1b[2J\u202eada"}', reason="\x1b]0;title\x07")
    call.agent_id = "cl\x1berk"
    asked = question("\x1b[2JWhich?", "\x1b[1mred")
    mesh.approvals.known = [call, asked]

    for arguments in (("list",), ("show", call.approval_id), ("show", asked.approval_id)):
        result = await mesh.run("approvals", *arguments)
        assert (result.exit_code, "Which" in result.stdout or "ada" in result.stdout) == (0, True)
        assert not {"\x1b", "\x07", "\u202e"} & set(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("approve",), "approved"),
        (("approve", "--arguments", '{"to":  "bob"}'), "approved"),
        (("deny", "--reason", "not now"), "denied"),
    ],
)
async def test_decision_is_sent_as_it_was_typed(
    mesh: FakeMesh, arguments: tuple[str, ...], printed: str
) -> None:
    call = mail()
    mesh.approvals.known = [call]
    word, *options = arguments

    result = await mesh.run("approvals", word, call.approval_id, *options)
    document = json.loads((await mesh.run("approvals", word, call.approval_id, *options, "--json")).stdout)

    assert (result.exit_code, result.stdout) == (0, f"{printed}; {call.run_id} goes on\n")
    assert (document["approval"]["approval_id"], document["run"]["run_id"]) == (
        call.approval_id,
        call.run_id,
    )
    for request in mesh.approvals.requests:
        sent = (request.approve.arguments_json or request.deny.reason) or None
        assert sent == (options[1] if options else None)


async def test_answer_is_sent(mesh: FakeMesh) -> None:
    asked = question("Which colour?")
    mesh.approvals.known = [asked]

    result = await mesh.run("approvals", "answer", asked.approval_id, "deep red")

    assert (result.exit_code, result.stdout) == (0, f"answered; {asked.run_id} goes on\n")
    assert mesh.approvals.requests[0].answer.text == "deep red"


async def test_refusals_say_who_decided_and_what_lists_approvals(mesh: FakeMesh) -> None:
    facts = {"state": "DENIED", "decided_by": "ada"}
    mesh.approvals.refusal = MeshError(Reason.APPROVAL_CLOSED, "it is DENIED by ada already", facts=facts)

    closed = await mesh.run("approvals", "approve", APPROVAL_ID)
    missing = await mesh.run("approvals", "show", APPROVAL_ID)

    assert closed.exit_code == missing.exit_code == 1
    assert closed.stderr.startswith("error: APPROVAL_CLOSED: it is DENIED by ada already")
    assert "`spawnmesh approvals list --all` lists what there is" in missing.stderr


async def test_wait_says_once_that_a_person_is_awaited(mesh: FakeMesh) -> None:
    mesh.sessions.outcome = waiting_session()

    result = await mesh.run("spawn", "Work.", "--wait", "--timeout", "0")
    document = await mesh.run("wait", SESSION_ID, "--timeout", "0", "--json")

    assert result.exit_code == document.exit_code == 1
    assert result.stdout.endswith(LINE)
    assert (result.stderr.count(LINE), "not done after 0 s" in result.stderr) == (1, True)
    assert json.loads(document.stdout)["latest_run"]["approval_id"] == APPROVAL_ID
    assert document.stderr == LINE


async def test_watch_says_what_to_type_while_the_run_waits(mesh: FakeMesh) -> None:
    waits = session_pb2.SessionEvent(
        number=1,
        kind=session_pb2.SESSION_EVENT_KIND_RUN,
        run_state=session_pb2.RUN_STATE_WAITING_APPROVAL,
    )
    mesh.sessions.events = [waits]

    decided = await mesh.run("watch", SESSION_ID)
    mesh.sessions.known = [waiting_session()]
    waiting = await mesh.run("watch", SESSION_ID)
    document = await mesh.run("watch", SESSION_ID, "--json")

    assert "WAITING_APPROVAL" in decided.stdout
    assert "approvals show" not in decided.stdout
    assert waiting.stdout == decided.stdout + LINE
    assert json.loads(document.stdout)["session_event"]["run_state"] == "RUN_STATE_WAITING_APPROVAL"


async def test_sessions_say_how_many_wait(mesh: FakeMesh) -> None:
    mesh.sessions.known = [waiting_session(), session_in(session_pb2.RUN_STATE_RUNNING), waiting_session()]

    result = await mesh.run("sessions")

    assert result.stdout.endswith("runs that wait for an approval: 2; see `spawnmesh approvals list`\n")
