"""An agent that reads long files and reports the code word in the first."""

from uuid import uuid4

from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.scripted_agents import READER
from spawnmesh_devstack.stack import Stack

_PROFILE = AgentProfile(
    agent_id=READER,
    system_prompt=f"You are the {READER}. Read every attached file, and tell the code word that is in the first.",
    models=[SCRIPTED_AGENT],
    tools=["list_files", "read_file"],
)


async def read_code_word(
    stack: Stack, code_word: str, *, stubs: bool, tenant: str = ""
) -> tuple[str, list[Entry]]:
    """Return the answer of the reader in a new tenant, and its transcript.

    The files after the first are so long that the first result is no longer recent.
    """
    tenant = tenant or f"t-{uuid4().hex[:12]}"
    settings = TenantSettings(transcripts=TranscriptSettings(stub_large_tool_payloads=stubs))
    lines = [f"line {number} of a long file that says nothing at all\n" for number in range(1_000)]
    first = [*lines[:200], f"the code word is {code_word}\n", *lines[:100]]
    files = [
        Attachment("1.txt", "".join(first).encode()),
        *(Attachment(f"{number}.txt", "".join([f"{number}\n", *lines]).encode()) for number in (2, 3, 4)),
    ]
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant, settings=settings)
    token = stack.client_token(tenant)
    async with connect_wire(
        session=stack.targets["session"], transcript=stack.targets["transcript"], token=token
    ) as mesh:
        await mesh.put_agent(_PROFILE)
        session = await mesh.spawn("Tell the code word.", agent_id=READER, attachments=files)
        waited = await mesh.wait(session.session_id, 60)
        assert waited.done
        entries = [entry async for entry in mesh.transcript(session.session_id)]
        return waited.session.latest_run.result_text, entries
