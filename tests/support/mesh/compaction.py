"""A conversation that is longer than the token budget of its agent."""

from uuid import uuid4

from spawnmesh.session.v1.session_pb2 import SESSION_MODE_SESSION
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_client.compaction import expand_summary
from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.stack import Stack

_PROFILE = AgentProfile(agent_id="talker", models=[SCRIPTED_AGENT], context_token_budget=8_000)


async def continue_from_summary(stack: Stack) -> None:
    """Hold the conversation, and check that it continues from a summary of the router's model."""
    tenant = f"t-{uuid4().hex[:12]}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
        settings = TenantSettings(transcripts=TranscriptSettings(compact_at_percent=50))
        _, stale = await operator.update_tenant(
            tenant, ["settings.transcripts.compact_at_percent"], settings=settings
        )
        assert not stale
    token = stack.client_token(tenant)
    async with connect_wire(
        session=stack.targets["session"], transcript=stack.targets["transcript"], token=token
    ) as mesh:
        await mesh.put_agent(_PROFILE)
        session = await mesh.spawn("First. " + "word " * 2_500, agent_id="talker", mode=SESSION_MODE_SESSION)
        assert (await mesh.wait(session.session_id, 60)).done
        await mesh.send(session.session_id, "Second. " + "word " * 2_500)
        waited = await mesh.wait(session.session_id, 60)
        assert "You said: Second. word" in waited.session.latest_run.result_text
        entries = [entry async for entry in mesh.transcript(session.session_id)]
        [summary] = [entry for entry in entries if entry.body.HasField("compaction")]
        compaction = summary.body.compaction
        assert compaction.sources.model == SCRIPTED_AGENT
        assert '"from": "user", "text": "First. word' in compaction.summary, (
            "the scripted model repeats its input"
        )
        assert compaction.token_count_after < compaction.token_count_before - 2_000
        assert summary.writer.run_id == waited.session.latest_run.run_id
        sources = [
            entry
            async for entry in expand_summary(
                mesh.service("transcript"), session.session_id, summary.entry_id
            )
        ]
        assert sources[0].body.message.content[0].text.text.startswith("First. word")
        answers = [
            entry
            for entry in entries
            if entry.seq > summary.seq and entry.body.message.usage.input_token_count
        ]
        assert answers, "the answer follows the summary"
