"""`/agents`: the agents of the tenant, and everything about one of them."""

from datetime import timedelta

from spawnmesh_client.approval_views import ApprovalPolicy
from spawnmesh_client.client import Mesh
from spawnmesh_client.resource_views import Agent
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.furnished import MARKUP, UNSEEN
from tests.support.console.visitors import SignedIn, read

CLERK = Agent(
    "clerk",
    f"You are the clerk. {MARKUP} {UNSEEN}\nBe brief.",
    models=("scripted/flaky", "scripted/agent"),
    tools=("read_file", "ask_user"),
    spawnable_agents=("default",),
    max_turn_count=7,
    context_token_budget=12_345,
    mcp_servers=("mail",),
    approval=ApprovalPolicy(tools=("mcp__mail__*",), timeout=timedelta(hours=2)),
)


async def test_agents_are_listed_and_lead_to_their_pages(mesh: Mesh, signed_in: SignedIn) -> None:
    await mesh.agents.put(CLERK)
    await mesh.agents.put(CLERK)
    page = await read(await signed_in(ClientRole.READER), "/agents")
    version = (await mesh.agents.get("clerk")).version
    assert f"clerk scripted/flaky, scripted/agent mcp__mail__* 2 + 1 MCP {version}" in page.text
    assert "/agents/clerk" in page.links


async def test_an_agent_is_shown_with_everything(mesh: Mesh, signed_in: SignedIn) -> None:
    await mesh.agents.put(CLERK)
    page = await read(await signed_in(ClientRole.READER), "/agents/clerk")
    for words in (
        "Tools read_file ask_user",
        "MCP servers mail",
        "May spawn default",
        "7 at most",
        "12,345 tokens at most",
        "A person must approve calls of tools whose names begin with mcp__mail__.",
        "A call and a question wait for 2 h.",
    ):
        assert words in page.text
    assert {"/sessions?agent=clerk", "/agents/default"} <= {*page.links}
    (route,) = [link for link in page.links if link.startswith("/models?")]
    explained = await read(await signed_in(ClientRole.READER), route)
    assert "2. scripted/agent" in explained.text or "scripted/agent would be" in explained.text
    assert [form.method for form in page.forms] == ["post"], "only the form to sign out"


async def test_a_hostile_system_prompt_stays_text(mesh: Mesh, signed_in: SignedIn) -> None:
    await mesh.agents.put(CLERK)
    reader = await signed_in(ClientRole.READER)
    page = await read(reader, "/agents/clerk")
    assert MARKUP in page.text
    assert not page.tags("img")
    assert {one.get("src") for one in page.tags("script")} == {"/static/console.js"}
    html = (await reader.get("/agents/clerk")).text
    assert not {*UNSEEN} & {*html}
    assert "⟨U+202E⟩" in html


async def test_an_agent_that_does_not_exist_is_not_found(signed_in: SignedIn) -> None:
    page = await read(await signed_in(), "/agents/nobody", status=404)
    assert "UNKNOWN_AGENT" in page.text
