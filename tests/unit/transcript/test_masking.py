"""Masking removes secrets from entries and changes nothing else."""

import json

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_core.secret_forms import Secret, marker
from spawnmesh_transcript.operations.bodies.masking import masked_body


def test_bodies_lose_secrets_and_keep_thinking_images_and_ids() -> None:
    key = f"sk-{'0aB' * 16}"
    message = content_pb.Message(
        role=content_pb.ROLE_ASSISTANT,
        content=[
            content_pb.ContentBlock(text=content_pb.Text(text=f"use {key}")),
            content_pb.ContentBlock(thinking=content_pb.Thinking(text=f"use {key}", signature=key)),
            content_pb.ContentBlock(image=content_pb.Image(mime_type="image/png", data=key.encode())),
            content_pb.ContentBlock(
                tool_call=content_pb.ToolCall(
                    tool_call_id="call_1",
                    name="exec",
                    block_json=json.dumps({"id": "call_1", "input": {"c": key}}),
                )
            ),
        ],
    )
    body = entry_pb2.EntryBody(message=message)
    masked = masked_body(body, "entries[0]").message
    assert body.message == message, "what came in is left as it is"
    assert (masked.content[1], masked.content[2]) == (message.content[1], message.content[2])
    for changed in (masked.content[0].text.text, masked.content[3].tool_call.block_json):
        assert key not in changed
        assert marker(Secret.PROVIDER_KEY) in changed
    command = content_pb.BashExecution(command=f"echo {key}", exit_code=0)
    shell = content_pb.Message(role=content_pb.ROLE_BASH_EXECUTION, bash_execution=command)
    for other in (
        entry_pb2.EntryBody(message=shell),
        entry_pb2.EntryBody(mirror=entry_pb2.Mirror(message=shell)),
        entry_pb2.EntryBody(system_note=entry_pb2.SystemNote(text=key, topic="t")),
        entry_pb2.EntryBody(compaction=entry_pb2.Compaction(summary=key)),
        entry_pb2.EntryBody(branch_summary=entry_pb2.BranchSummary(summary=key)),
        entry_pb2.EntryBody(custom=entry_pb2.Custom(custom_type="t", data_json=json.dumps([key]))),
        entry_pb2.EntryBody(opaque=entry_pb2.Opaque(type="t", entry_json=json.dumps({"a": key}))),
    ):
        assert key not in str(masked_body(other, "entries[0]"))
