"""Area `lcm_disambiguator`: `given.tool_name` and `given.tool_input` are a call whose large result
a context shows as a reference.

The wording is the mesh's own. The replay checks that there is a reference, that it has the
permitted form, and what it does not contain.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1.context_pb2 import FreshTail
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings

from spawnmesh_devstack.conformance.cases import (
    REMARKS,
    BadCase,
    Case,
    CaseResult,
    list_of,
    object_of,
    text_of,
)
from spawnmesh_devstack.conformance.compare import shown
from spawnmesh_devstack.conformance.mesh import MeshAccess
from spawnmesh_devstack.conformance.scratch_transcript import ScratchTranscript, open_scratch_transcript
from spawnmesh_devstack.conformance.tenants import prepare_tenant
from spawnmesh_devstack.conformance.tool_calls import tool_call, wire_text

_TENANT = "conformance-stubs"
_CALL_ID = "call_1"
_OUTPUT = "every line of this output says the same\n" * 400
_NO_TAIL = FreshTail(message_count=1, token_count=1)
_FORM = re.compile(
    r"\[Tool output file_[0-9a-z]{26} \| tool=[A-Za-z0-9_.:/-]{1,64} \| [0-9,]+ bytes\]\n"
    r"(?:(?:path|pattern|session): [^\s\[\]]{1,200}\n)?"
    r"[^\n\[\]]*transcript_describe[^\n\[\]]*"
)


async def replay(mesh: MeshAccess, case: Case) -> CaseResult:
    """Expect `must_not_contain`, one text or several. Without it, only the rules of every reference
    hold.

    These are its form, and that it contains no string of the input that is an address or has a
    space.
    """
    given = object_of(case.given, "given")
    if "given" in given:
        given = object_of(object_of(given, "given", {"given", *REMARKS})["given"], "given.given")
    given = object_of(given, "given", {"tool_name", "tool_input", *REMARKS})
    forbidden = _forbidden(case.expect) + [
        text for text in _strings(given.get("tool_input")) if "://" in text or len(text.split()) > 1
    ]
    text = await _reference(mesh, text_of(given.get("tool_name"), "tool_name"), given.get("tool_input"))
    if not _FORM.fullmatch(text):
        return CaseResult(f"came {shown(text)}, which is not the form of a reference")
    found = [one for one in forbidden if one in text]
    return CaseResult(f"came {shown(text)} with {shown(found)}" if found else "")


async def _reference(mesh: MeshAccess, tool_name: str, tool_input: Any) -> str:
    """Return what a context shows in place of the call's result. Raises BadCase if there is no
    reference.
    """
    block = {"type": "toolCall", "id": _CALL_ID, "name": tool_name, "arguments": tool_input}
    call = tool_call(block, _CALL_ID)
    asked = content_pb.Message(
        role=content_pb.ROLE_ASSISTANT, content=[content_pb.ContentBlock(tool_call=call)]
    )
    output = content_pb.ContentBlock(text=content_pb.Text(text=_OUTPUT))
    answered = content_pb.Message(
        role=content_pb.ROLE_TOOL_RESULT,
        tool_call_id=_CALL_ID,
        tool_name=wire_text(tool_name),
        content=[output],
    )
    said = content_pb.Message(
        role=content_pb.ROLE_ASSISTANT, content=[content_pb.ContentBlock(text=content_pb.Text(text="done"))]
    )
    await _prepare(mesh)
    async with open_scratch_transcript(mesh, _TENANT) as transcript:
        seqs = await transcript.append([asked])
        seqs += await transcript.append([answered, said])
        return await _read(transcript, seqs[1])


async def _read(transcript: ScratchTranscript, seq: int) -> str:
    context = await transcript.context(_NO_TAIL)
    if [stubbed.seq for stubbed in context.stubbed] != [seq]:
        raise BadCase("the context has no reference")
    message = next(entry.body.message for entry in context.entries if entry.seq == seq)
    return "\n\n".join(block.text.text for block in message.content)


async def _prepare(mesh: MeshAccess) -> None:
    """Prepare a tenant with the stub tier, the same for every case."""
    settings = TranscriptSettings(stub_large_tool_payloads=True)
    with mesh.as_session(_TENANT):
        for service in ("attachment-blob", "transcript"):
            await prepare_tenant(mesh, service, transcripts=settings)


def _forbidden(expect: Any) -> list[str]:
    expected = object_of(expect, "expect")
    if not expected:
        raise BadCase("nothing is expected")
    texts = expected.get("must_not_contain", [])
    listed = [texts] if isinstance(texts, str) else list_of(texts, "must_not_contain")
    if not all(isinstance(text, str) and text for text in listed):
        raise BadCase("must_not_contain has what is no text")
    return listed


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in the input, and every string in JSON inside of a string."""
    if isinstance(value, dict):
        for member in value.values():
            yield from _strings(member)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, str):
        yield value
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            return
        yield from _strings(inner)
