"""The console that a mesh starts shows the traces that the mesh recorded itself."""

import re
from uuid import uuid4

import httpx2
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_client.wire import connect_wire as connect
from spawnmesh_core.condensed_spans import condensed
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.span_file import load_spans
from spawnmesh_devstack.stack import Stack
from spawnmesh_devstack.traces import orphans

from tests.support.console.html import Page, read_html
from tests.support.waiting import eventually


async def test_trace_of_a_spawn_with_a_child_is_that_of_the_command(stack: Stack) -> None:
    tenant, other = (f"t-{uuid4().hex[:12]}" for _ in range(2))
    async with connect(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
        await operator.create_tenant(other)
    async with connect(session=stack.targets["session"], token=stack.client_token(tenant)) as mesh:
        tools = ["sessions_spawn", "list_files"]
        profile = AgentProfile(
            agent_id=CALLER,
            system_prompt=f"You are the {CALLER}.",
            models=[SCRIPTED_AGENT],
            tools=tools,
            spawnable_agents=[CALLER],
        )
        await mesh.put_agent(profile)
        task = f'sessions_spawn {{"agent_id": "{CALLER}", "task": "list_files {{}}"}}'
        session = await mesh.spawn(task, agent_id=CALLER, wait_seconds=120)

    def recorded() -> int:
        spans = load_spans(stack.traces_file, session.trace_id)
        runs = [span for span in spans if span.name.startswith("run ")]
        return len(condensed(spans)) if len(runs) == 2 and not orphans(spans) else 0

    await eventually(recorded)
    address = stack.console or await stack.start_console()
    path = f"/sessions/{session.session_id}/trace"
    async with httpx2.AsyncClient(
        base_url=address, headers={"accept": "text/html"}, trust_env=False, follow_redirects=True
    ) as client:

        async def page_of(tenant_id: str) -> tuple[int, Page]:
            await client.post(
                "/sign-in", data={"token": stack.client_token(tenant_id)}, headers={"origin": address}
            )
            answer = await client.get(path)
            return answer.status_code, read_html(answer.text)

        async def complete() -> Page | None:
            status, page = await page_of(tenant)
            assert status == 200
            return page if "are not here" not in page.text else None

        page = await eventually(complete)
        names = [one["title"] for one in page.tags("th") if "title" in one]
        assert names.count(f"session run {CALLER}") == 2, "the run of the child is in the trace of its parent"
        assert {
            f"runner invoke_agent {CALLER}",
            "runner execute_tool list_files",
            "session SpawnSession",
        } <= {*names}
        shown, of = re.findall(r"Spans (\d+) of (\d+)", page.text)[0]
        assert (int(shown), int(of)) == (len(names), len(load_spans(stack.traces_file, session.trace_id)))
        assert (await page_of(other))[0] == 404
