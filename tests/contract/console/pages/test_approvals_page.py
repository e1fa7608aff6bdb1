"""People decide on tool calls and questions in the console, and each decision reaches the mesh."""

import json
from typing import Any

import httpx2
import pytest
from spawnmesh_client.approval_views import Approval, ApprovalPolicy, ApprovalState
from spawnmesh_client.client import Mesh
from spawnmesh_client.resource_views import Agent
from spawnmesh_client.session import Session
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.html import Form, Page, read_html
from tests.support.console.visitors import ConsoleTenant, SignedIn, form_key, read
from tests.support.waiting import eventually

CALLER = "You are the caller. Make the call that you are given, and say what came of it."
WRITE = {"path": "note.txt", "content": "Dear Ada,\nall is well."}
HOSTILE = "<script>alert(1)</script> \u202egnp.exe \x1b[31mred\x1b[0m \u200b\U000e0041 &lt; 漢"
UNSEEN = "\u202e\x1b\u200b\U000e0041"


class Clerk:
    """An agent whose calls of `write_file` wait for a person, and who asks questions."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    async def call(self, tool: str, arguments: dict[str, Any]) -> tuple[Session, Approval]:
        """Let the agent make a call, and return its session and the approval that waits."""
        session = await self.mesh.spawn(f"{tool} {json.dumps(arguments)}", agent="clerk")

        async def waiting() -> list[Approval]:
            listed = self.mesh.approvals.list(state="PENDING", session_id=session.session_id)
            return [one async for one in listed]

        (approval,) = await eventually(waiting)
        return session, approval

    async def state(self, approval: Approval) -> ApprovalState:
        return (await self.mesh.approvals.get(approval.approval_id)).state


@pytest.fixture
async def clerk(mesh: Mesh) -> Clerk:
    """Create the agent."""
    policy = ApprovalPolicy(tools=("write_file",))
    await mesh.agents.put(
        Agent("clerk", system_prompt=CALLER, tools=("write_file", "ask_user"), approval=policy)
    )
    return Clerk(mesh)


def form_of(page: Page, approval: Approval, decision: str) -> Form:
    """Return the form with the button of this decision."""
    action = f"/approvals/{approval.approval_id}"
    (found,) = [
        form
        for form in page.forms
        if form.action == action and decision in [one.get("value") for one in form.buttons]
    ]
    return found


async def send(
    client: httpx2.AsyncClient, approval: Approval, decision: str, **fields: str
) -> httpx2.Response:
    """Send the form of a decision as the queue has it, with other values in these fields."""
    path = f"/approvals/{approval.approval_id}"
    page = await read(client, "/approvals")
    (key, *_) = [form.fields["form_key"] for form in page.forms if form.action == path]
    return await client.post(path, data={"form_key": key, "decision": decision, **fields})


async def test_each_decision_reaches_the_run(signed_in: SignedIn, clerk: Clerk) -> None:
    client = await signed_in()
    _, approved = await clerk.call("write_file", WRITE)
    _, edited = await clerk.call("write_file", WRITE)
    denying, denied = await clerk.call("write_file", WRITE)
    answering, answered = await clerk.call("ask_user", {"question": "Which?", "choices": ["red", "a\nb"]})
    writing, written = await clerk.call("ask_user", {"question": "How many?"})
    refusing, refused = await clerk.call("ask_user", {"question": "Why?"})
    page = await read(client, "/approvals")
    in_form = form_of(page, edited, "edit").fields["text"].removeprefix("\n")
    assert json.loads(in_form) == WRITE

    for approval, decision, fields in (
        (approved, "approve", {}),
        (edited, "edit", {"text": in_form.replace("Ada", "Bob").replace("\n", "\r\n")}),
        (denied, "deny", {"text": "Not in May.\r\nAsk Ada."}),
        (answered, "answer", {"choice": "1"}),
        (written, "answer", {"text": "Forty-two."}),
        (refused, "deny", {"text": "No one knows."}),
    ):
        answer = await send(client, approval, decision, **fields)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/approvals?done={decision}")
        shown = await read(client, answer.headers["location"])
        assert approval.approval_id not in str(shown.forms)

    found = {one.approval_id: one async for one in clerk.mesh.approvals.list()}
    assert {one.decided_by for one in found.values()} == {"ada"}
    assert found[approved.approval_id].state is ApprovalState.APPROVED
    assert found[approved.approval_id].edited_arguments_json == ""
    assert found[edited.approval_id].state is ApprovalState.APPROVED
    assert found[edited.approval_id].edited_arguments == {**WRITE, "content": "Dear Bob,\nall is well."}
    assert found[denied.approval_id].state is ApprovalState.DENIED
    assert found[answered.approval_id].text == "a\nb"
    for session, said in (
        (denying, "Not in May."),
        (answering, "a\nb"),
        (writing, "Forty-two."),
        (refusing, "No one knows."),
    ):
        assert said in (await session.result(timeout=60)).text

    decided = await read(client, "/approvals?show=decided")
    for words in ("approved", "denied", "answered", "Dear Bob", "Ask Ada.", "Forty-two.", "ada"):
        assert words in decided.text
    assert (await read(client, "/approvals")).text.count("Nothing waits for a person") == 1


async def test_approving_the_unchanged_text_is_no_edit(signed_in: SignedIn, clerk: Clerk) -> None:
    client = await signed_in()
    _, approval = await clerk.call("write_file", WRITE)
    form = form_of(await read(client, "/approvals"), approval, "edit")
    assert (await send(client, approval, "edit", text=form.fields["text"])).status_code == 303
    found = await clerk.mesh.approvals.get(approval.approval_id)
    assert (found.state, found.edited_arguments_json) == (ApprovalState.APPROVED, "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"path": 3, "contents": "</textarea><b>x"}', "does not fit the tool write_file"),
        ('\n{"path": "a", "path": "b", "content": ""}', "has a key twice"),
        ("{", "is not JSON"),
        ('["a"]', "is not a JSON object"),
        ("  ", "There are no arguments"),
    ],
)
async def test_refused_arguments_stay_in_the_form(
    signed_in: SignedIn, clerk: Clerk, text: str, why: str
) -> None:
    client = await signed_in()
    _, approval = await clerk.call("write_file", WRITE)
    answer = await send(client, approval, "edit", text=text)
    page = read_html(answer.text)
    assert answer.status_code == 400
    assert why in page.text
    assert form_of(page, approval, "edit").fields["text"].removeprefix("\n") == text
    assert await clerk.state(approval) is ApprovalState.PENDING


async def test_refused_answers_decide_nothing(signed_in: SignedIn, clerk: Clerk) -> None:
    client = await signed_in()
    _, choosing = await clerk.call("ask_user", {"question": "Which?", "choices": ["red", "blue"]})
    _, writing = await clerk.call("ask_user", {"question": "How many?"})
    for approval, decision, fields in (
        (choosing, "answer", {}),
        (choosing, "answer", {"choice": "2", "text": "red"}),
        (choosing, "answer", {"choice": "-1"}),
        (choosing, "answer", {"choice": "9" * 5000}),
        (choosing, "answer", {"choice": "\u0661"}),
        (choosing, "approve", {}),
        (choosing, "edit", {"text": "{}"}),
        (writing, "answer", {"text": " "}),
        (writing, "", {}),
        (writing, "kill", {}),
        (writing, "deny", {"text": "x" * 4097}),
    ):
        answer = await send(client, approval, decision, **fields)
        assert answer.status_code == 400, (decision, fields)
        assert await clerk.state(approval) is ApprovalState.PENDING
    assert "x" * 4097 in answer.text


async def test_of_two_people_the_second_one_reads_who_decided(
    signed_in: SignedIn, tenant: ConsoleTenant, clerk: Clerk
) -> None:
    ada = await signed_in(tenant.token(subject="ada"))
    bob = await signed_in(tenant.token(ClientRole.USER, subject="bob <b>"))
    _, approval = await clerk.call("write_file", WRITE)
    key = form_of(await read(ada, "/approvals"), approval, "edit").fields["form_key"]
    assert (await send(bob, approval, "deny", text="Too early.")).status_code == 303

    path = f"/approvals/{approval.approval_id}"
    sent = {"form_key": key, "decision": "edit", "text": '{"path": "mine.txt", "content": ""}'}
    answer = await ada.post(path, data=sent)
    page = read_html(answer.text)
    assert answer.status_code == 409
    for words in ("Decided meanwhile by bob <b>: denied", "Too early.", "mine.txt"):
        assert words in page.text
    assert [form.action for form in page.forms] == ["/sign-out"]
    assert await clerk.state(approval) is ApprovalState.DENIED
    again = await bob.post(
        path, data={"form_key": await form_key(bob), "decision": "deny", "text": "Too early."}
    )
    assert again.status_code == 303, "a repeat of the same decision changes nothing"


async def test_a_wrong_form_key_and_a_small_role_decide_nothing(
    signed_in: SignedIn, tenant: ConsoleTenant, clerk: Clerk
) -> None:
    ada, reader = await signed_in(), await signed_in(ClientRole.READER)
    other = await signed_in(tenant.token(subject="eve"))
    _, approval = await clerk.call("write_file", WRITE)
    path = f"/approvals/{approval.approval_id}"
    for data in (
        {"decision": "approve"},
        {"decision": "approve", "form_key": "x"},
        {"decision": "approve", "form_key": await form_key(other)},
    ):
        assert (await ada.post(path, data=data)).status_code == 403
    own = {"decision": "approve", "form_key": await form_key(reader, "/approvals")}
    assert (await reader.post(path, data=own)).status_code == 403
    assert await clerk.state(approval) is ApprovalState.PENDING

    page = await read(reader, "/approvals")
    assert [form.action for form in page.forms] == ["/sign-out"]
    assert "note.txt" in page.text
    assert "The role user decides" in page.text


async def test_hostile_text_stays_text(signed_in: SignedIn, clerk: Clerk) -> None:
    client = await signed_in()
    _, call = await clerk.call("write_file", {"path": HOSTILE, "content": f"{HOSTILE}\nsecond line"})
    _, asked = await clerk.call("ask_user", {"question": HOSTILE, "choices": [HOSTILE, "no"]})
    form = form_of(await read(client, "/approvals"), call, "edit")
    assert json.loads(form.fields["text"])["path"] == HOSTILE, "what is edited means the same"

    for path in ("/approvals", f"/approvals/{call.approval_id}", f"/approvals/{asked.approval_id}"):
        await _is_harmless(client, path)
    assert (await send(client, call, "deny", text=HOSTILE)).status_code == 303
    assert (await send(client, asked, "answer", choice="0")).status_code == 303
    assert (await clerk.mesh.approvals.get(asked.approval_id)).text == HOSTILE
    await _is_harmless(client, "/approvals?show=decided")


async def _is_harmless(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert not {*UNSEEN} & {*answer.text}, path
    page = read_html(answer.text)
    assert "<script>alert(1)</script>" in page.text
    assert all(one["src"].startswith("/static/") for one in page.tags("script"))


async def test_notices_and_redirects_come_from_the_console(
    signed_in: SignedIn, tenant: ConsoleTenant, clerk: Clerk
) -> None:
    client = await signed_in()
    session, approval = await clerk.call("ask_user", {"question": "How many?"})
    _, other = await clerk.call("ask_user", {"question": "How few?"})
    for done in ("gone", "<b>", "https://evil.example"):
        assert done not in (await read(client, f"/approvals?done={done}")).text
    page = await read(client, f"/approvals?session_id={session.session_id}")
    assert "How many?" in page.text
    assert "How few?" not in page.text
    part = await client.get(f"/approvals?session_id={session.session_id}&part=ids")
    assert part.json() == {"ids": [approval.approval_id], "is_all": True}

    answer = await send(client, approval, "answer", text="3", session_id=session.session_id)
    assert answer.headers["location"] == f"/approvals?done=answer&session_id={session.session_id}"
    answer = await send(client, other, "answer", text="1", session_id="//evil.example\r\nx: y")
    assert answer.headers["location"].startswith("/approvals?done=answer&session_id=%2F%2Fevil")
    missing = await client.get("/approvals/apr_00000000000000000000000000")
    assert missing.status_code == 404


async def test_long_arguments_are_complete_on_the_page_of_one_approval(
    signed_in: SignedIn, clerk: Clerk
) -> None:
    client = await signed_in()
    content = "".join(f"line {number}\n" for number in range(6000))[:60_000]
    _, approval = await clerk.call("write_file", {"path": "long.txt", "content": content})
    path = f"/approvals/{approval.approval_id}"
    queue = await client.get("/approvals")
    assert len(queue.text) < 20_000
    assert "Read or edit all" in read_html(queue.text).text
    assert "edit" not in [one.get("value") for form in read_html(queue.text).forms for one in form.buttons]
    form = form_of(await read(client, path), approval, "edit")
    assert json.loads(form.fields["text"])["content"] == content

    denied = await send(client, approval, "deny", text="Too long.")
    assert denied.status_code == 303
    decided = await client.get("/approvals?show=decided")
    assert len(decided.text) < 20_000
    assert path in decided.text


async def test_card_of_a_new_approval_is_fetched_alone(signed_in: SignedIn, clerk: Clerk) -> None:
    client = await signed_in()
    session, approval = await clerk.call("write_file", WRITE)
    path = f"/approvals/{approval.approval_id}"
    answer = await client.get(f"{path}?part=card&session_id={session.session_id}")
    assert answer.text.lstrip().startswith(f'<li data-id="{approval.approval_id}">')
    form = form_of(read_html(answer.text), approval, "approve")
    assert form.fields["session_id"] == session.session_id
    decided = await client.post(path, data={**form.fields, "decision": "approve"})
    assert decided.headers["location"] == f"/approvals?done=approve&session_id={session.session_id}"
    gone = await client.get(f"{path}?part=card")
    assert (gone.status_code, gone.text) == (204, "")
