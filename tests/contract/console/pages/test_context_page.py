"""`/sessions/…/context`: the part of a transcript that a model reads, within its budget."""

import re

import httpx2
import pytest
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh.transcript.v1.transcript_service_pb2 import AssembleContextRequest
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.client import connect
from spawnmesh_client.resource_views import Agent
from spawnmesh_client.session import Session
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.scripted_agents import READER
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.furnished import MARKUP, UNSEEN
from tests.support.console.html import Page, read_html
from tests.support.console.said import ended_session
from tests.support.console.visitors import ConsoleTenant, SignedIn, read

BUDGET = 40_000
STUBS = "settings.transcripts.stub_large_tool_payloads"


def _lines(word: str, count: int) -> str:
    return "".join(f"{word} {number} of a long text\n" for number in range(count))


@pytest.fixture
async def stubbed(tenant: ConsoleTenant) -> Session:
    """Return an ended session of a tenant with stubs, in which an agent has read long files."""
    stack = tenant.console.stack
    async with connect(targets=stack.targets, token=stack.admin_token()) as operator:
        settings = TenantSettings(transcripts=TranscriptSettings(stub_large_tool_payloads=True))
        await operator.tenants.update(tenant.tenant_id, [STUBS], settings=settings)
    files = [Attachment("1.txt", f"the code word is tulip\n{_lines('first', 500)}".encode())]
    files += [Attachment(f"{number}.txt", _lines("later", 800).encode()) for number in (2, 3, 4)]
    await tenant.mesh.agents.put(
        Agent(
            READER,
            f"You are the {READER}.",
            models=(SCRIPTED_AGENT,),
            tools=("list_files", "read_file"),
            context_token_budget=BUDGET,
        )
    )
    session = await tenant.mesh.spawn(f"Tell it. {MARKUP} {UNSEEN}", agent=READER, attachments=files)
    assert (await session.result(120)).text == "The code word is tulip."
    return session


async def _page(client: httpx2.AsyncClient, session: Session, **query: str | int) -> Page:
    answer = await client.get(f"/sessions/{session.session_id}/context", params=query)
    return await read(client, str(answer.url))


def _tokens(page: Page, part: str) -> int:
    """Return the tokens of a part in the legend of the bar."""
    found = re.search(rf"\b{part} ([\d,]+) ", page.text)
    return int(found[1].replace(",", "")) if found else 0


def _bar(page: Page) -> dict[str, tuple[float, float]]:
    """Return where each piece of the bar begins and how wide it is, in percent."""
    return {
        one["class"].removeprefix("part part-"): (
            float(one["x"].rstrip("%")),
            float(one["width"].rstrip("%")),
        )
        for one in page.tags("rect")
        if one.get("class", "").startswith("part ") and "x" in one
    }


async def test_the_bar_of_a_session_with_stubs_sums_to_the_budget(
    stubbed: Session, tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    page = await _page(await signed_in(ClientRole.READER), stubbed, model="")
    tokens = {part: _tokens(page, part) for part in ("system prompt", "whole", "stubbed", "free")}
    assert all(tokens.values())
    assert sum(tokens.values()) == BUDGET, "the budget is the agent's"
    peer = tenant.mesh.wire.service("transcript")
    request = AssembleContextRequest(
        session_id=stubbed.session_id, token_budget=BUDGET, fresh_tail=FreshTail(token_count=BUDGET // 4)
    )
    context = await peer.unary(TranscriptServiceStub(peer.channel).AssembleContext, request)
    assert tokens["whole"] + tokens["stubbed"] == context.token_count
    bar = _bar(page)
    assert [*bar] == ["system", "whole", "stubbed", "free"]
    assert sum(width for _, width in bar.values()) == pytest.approx(100, abs=0.01)
    assert bar["free"][1] == pytest.approx(100 * tokens["free"] / BUDGET, abs=1)
    own = {entry.seq: entry.token_count for entry in context.entries}
    assert tokens["stubbed"] == sum(own[stub.seq] for stub in context.stubbed)
    for stub in context.stubbed:
        assert f"{own[stub.seq]:,} tokens of {stub.full_token_count:,}" in page.text
        assert stub.file_ids[0] in page.text
        assert f"/sessions/{stubbed.session_id}/entries/{stub.seq}/text" in page.links
    assert f"/sessions/{stubbed.session_id}" in page.links


async def test_a_small_budget_drops_entries_and_says_so(stubbed: Session, signed_in: SignedIn) -> None:
    page = await _page(await signed_in(ClientRole.READER), stubbed, budget=2_000, model="")
    assert re.search(r"messages and notes \(among entries 1 to \d+\) did not fit the budget", page.text)
    assert "The code word is tulip." in page.text
    assert "later 0 of a long text" not in page.text


async def test_a_hostile_transcript_stays_text(stubbed: Session, signed_in: SignedIn) -> None:
    reader = await signed_in(ClientRole.READER)
    page = await _page(reader, stubbed, budget=100_000)
    assert MARKUP in page.text
    assert not page.tags("img")
    assert {one.get("src") for one in page.tags("script")} == {"/static/console.js"}
    html = (await reader.get(f"/sessions/{stubbed.session_id}/context?budget=100000")).text
    assert not {*UNSEEN} & {*html}


async def test_the_context_of_an_ended_session_is_shown(tenant: ConsoleTenant, signed_in: SignedIn) -> None:
    session = await tenant.mesh.spawn("Say hello.")
    await session.result(60)
    page = await _page(await signed_in(), session)
    assert "if the session had not ended" in page.text
    assert "You said: Say hello." in page.text
    assert "of 100,000 tokens are used" in page.text


async def test_each_answer_leads_to_what_its_model_saw(tenant: ConsoleTenant, signed_in: SignedIn) -> None:
    session = await ended_session(tenant.mesh, "Say hello.")
    await session.send("Say it again.")
    await session.result(60)
    client = await signed_in(ClientRole.READER)
    page = await read(client, f"/sessions/{session.session_id}")
    answers = [entry.seq async for entry in session.transcript() if entry.role == "ASSISTANT"]
    links = [link for link in page.links if "/context?before=" in link]
    assert [int(re.findall(r"before=(\d+)", link)[0]) for link in links] == answers
    first, second = [await read(client, link) for link in links]
    assert "Say hello." in first.text
    assert "Say it again." not in first.text
    assert "Say it again." in second.text
    assert "You said: Say hello." in second.text, "the first answer"
    for seen, seq in ((first, answers[0]), (second, answers[1])):
        assert f"/sessions/{session.session_id}?at={seq}#e-{seq}" in seen.links
        assert f"You said: Say {'hello.' if seen is first else 'it again.'}" not in seen.text
    changed = await _page(client, session, before=answers[0], budget=30)
    assert "Say it again." not in changed.text
    assert [form.fields["before"] for form in changed.forms if "budget" in form.fields] == [str(answers[0])]
    beyond = await client.get(f"/sessions/{session.session_id}/context?before=1000")
    assert beyond.status_code == 400
    assert "beyond the end" in read_html(beyond.text).text


async def test_more_than_the_budget_is_said(tenant: ConsoleTenant, signed_in: SignedIn) -> None:
    session = await ended_session(tenant.mesh, _lines("word", 100))
    page = await _page(await signed_in(), session, budget="10")
    assert "tokens for a budget of 10" in page.text
    assert "free" not in _bar(page)


@pytest.mark.parametrize("budget", ["0", "-1", "many", "2147483648", "9" * 40, "²"])
async def test_a_budget_that_is_no_number_keeps_the_form(
    budget: str, tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    session = await tenant.mesh.spawn("Say hello.")
    operator = await signed_in()
    answer = await operator.get(f"/sessions/{session.session_id}/context", params={"budget": budget})
    assert answer.status_code == 400
    page = read_html(answer.text)
    assert "The budget is a whole number of tokens" in page.text
    assert [form.fields["budget"] for form in page.forms if "budget" in form.fields] == [budget]


async def test_a_session_of_another_tenant_is_not_found(signed_in: SignedIn) -> None:
    await read(await signed_in(), "/sessions/ses_01m8m2621y0fqryw1kcajxsjd2/context", status=404)
