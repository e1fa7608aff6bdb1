"""A model searches its own conversation with the tool for it."""

import secrets
from uuid import uuid4

from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.scripted_agents import SEARCHER
from spawnmesh_devstack.stack import Stack

_PROFILE = AgentProfile(
    agent_id=SEARCHER,
    system_prompt=f"You are the {SEARCHER}. Read every attached file, and find the code word by a search.",
    models=[SCRIPTED_AGENT],
    tools=["list_files", "read_file", "transcript_search"],
)


async def test_model_finds_the_entry_but_not_its_own_query(stack: Stack) -> None:
    tenant, code_word = f"t-{uuid4().hex[:12]}", secrets.token_hex(8)
    files = [
        Attachment("1.txt", f"the code word is {code_word}\n".encode()),
        Attachment("2.txt", b"nothing\n"),
    ]
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    async with connect_wire(session=stack.targets["session"], token=stack.client_token(tenant)) as mesh:
        await mesh.put_agent(_PROFILE)
        session = await mesh.spawn("Tell me the secret.", agent_id=SEARCHER, attachments=files)
        waited = await mesh.wait(session.session_id, 60)
    # The content of the file is the only hit: the call of the search has the same words and is left out.
    assert waited.session.latest_run.result_text == f"1 hits; the code word is {code_word}."
