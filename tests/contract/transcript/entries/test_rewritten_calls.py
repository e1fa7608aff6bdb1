"""A tool result that holds its call as it was made: redacted like any call, and paired in every
context."""

import json
import secrets

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2

from tests.support.transcript.bodies import call_block, text_block, user
from tests.support.transcript.fixtures import Session
from tests.support.transcript.tables import Superuser, stored_bytes_of


def spawn(task: str, content: str, **more: object) -> str:
    arguments = {"task": task, "attachments": [{"name": "a", "content": content}]}
    return json.dumps(
        {"type": "toolCall", "id": "c1", "name": "sessions_spawn", "arguments": arguments, **more}
    )


async def test_AppendEntries__attachment_content_of_a_rewritten_call_is_nowhere_in_the_database(
    session: Session, superuser: Superuser
) -> None:
    secret = f"SECRET-{secrets.token_hex(16)}"
    claim = await session.acquire(1)
    asked = content_pb.Message(
        role=content_pb.ROLE_ASSISTANT, content=[call_block("c1", spawn("t", secret), "sessions_spawn")]
    )
    made = call_block("c1", spawn("another", secret, rewrittenBy=["gate"]), "sessions_spawn")
    result = content_pb.Message(
        role=content_pb.ROLE_TOOL_RESULT,
        tool_call_id="c1",
        tool_name="sessions_spawn",
        content=[text_block("spawned"), made],
    )
    await session.append([user("go")], claim=claim)
    await session.append(
        [entry_pb2.EntryBody(message=asked), entry_pb2.EntryBody(message=result)], claim=claim
    )
    assert secret.encode() not in await stored_bytes_of(superuser, session.tenant_id)
    *_, read = (await session.context()).entries
    kept = json.loads(read.body.message.content[1].tool_call.block_json)
    assert (kept["arguments"]["task"], kept["rewrittenBy"]) == ("another", ["gate"])
    assert kept["arguments"]["attachments"][0]["content"]["$redacted"] == "attachment"
    assert [entry.body.message.role for entry in (await session.context()).entries][-2:] == [
        content_pb.ROLE_ASSISTANT,
        content_pb.ROLE_TOOL_RESULT,
    ]
