"""Area `transcript_pairing`: a run writes `given.messages`, and the replay reads them as a model
would.

The replay compares role, content, ids, tool names and errors of every message, in order, and the
counts. It does not compare the text of a synthetic result, whose wording is the service's own, nor
members for which the contract has no field.
"""

from collections.abc import Sequence
from typing import Any

from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ROLE_TOOL_RESULT, ContentBlock, Message, ToolCall
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_devstack.conformance.cases import REMARKS, BadCase, Case, CaseResult, object_of
from spawnmesh_devstack.conformance.compare import difference, shown
from spawnmesh_devstack.conformance.mesh import MeshAccess
from spawnmesh_devstack.conformance.messages import comparable, is_made_up, messages_of
from spawnmesh_devstack.conformance.scratch_transcript import ScratchTranscript, open_scratch_transcript


async def replay(mesh: MeshAccess, case: Case) -> CaseResult:
    """Expect `messages`, `addedIds`, `droppedDuplicateCount` and `droppedOrphanCount`, or some of
    them.

    The service has no options: those of a case are reported if its outcome differs.
    """
    given = object_of(case.given, "given")
    if "given" in given:
        given = object_of(object_of(given, "given", {"given", *REMARKS})["given"], "given.given")
    given = object_of(given, "given", {"messages", "options", *REMARKS})
    messages = messages_of(given.get("messages"), "messages")
    made_up = [is_made_up(source) for source in given["messages"]]
    if any(made_up):
        wording = await _wording(mesh)
        for message in (one for one, is_one in zip(messages, made_up, strict=True) if is_one):
            del message.content[:]
            message.content.extend(wording)
    expect = dict(object_of(case.expect, "expect"))
    if "messages" in expect:
        expect["messages"] = _expected(expect["messages"], messages)
    async with open_scratch_transcript(mesh) as transcript:
        came = await _assembled(transcript, messages, made_up)
    problem = difference(expect, came)
    if problem and given.get("options"):
        problem += f"; the service knows nothing of the case's options {shown(given['options'])}"
    return CaseResult(problem)


async def _wording(mesh: MeshAccess) -> Sequence[ContentBlock]:
    """Return the service's text of a missing result, by which it recognises one that comes back."""
    call = ToolCall(tool_call_id="call_1", name="read", block_json="{}")
    async with open_scratch_transcript(mesh) as transcript:
        await transcript.append([Message(role=ROLE_ASSISTANT, content=[ContentBlock(tool_call=call)])])
        context = await transcript.context()
    return [block for entry in context.entries if not entry.entry_id for block in entry.body.message.content]


def _expected(sources: Any, given: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the expectation in the form of an outcome. A result that no tool gave is synthetic."""
    messages = messages_of(sources, "expect.messages")
    known = [_without_tool_name(message) for message in given]
    return [
        _form(message, made_up=is_made_up(source) or _without_tool_name(message) not in known)
        for message, source in zip(messages, sources, strict=True)
    ]


def _without_tool_name(message: Message) -> Message:
    """Return the message without its tool's name, which a service may complete."""
    copy = Message()
    copy.CopyFrom(message)
    copy.ClearField("tool_name")
    return copy


async def _assembled(
    transcript: ScratchTranscript, messages: Sequence[Message], made_up: Sequence[bool]
) -> dict[str, Any]:
    """Return the outcome in the members of an expectation."""
    places = [place for place, message in enumerate(messages) if not _answers_nothing(message)]
    for message in filter(_answers_nothing, messages):
        await _see_refused(transcript, message)
    place_of = dict(zip(await transcript.append([messages[place] for place in places]), places, strict=True))
    entries = (await transcript.context()).entries
    kept = {place_of[entry.seq]: entry for entry in entries if entry.entry_id}
    dropped = [
        place
        for place, message in enumerate(messages)
        if message.role == ROLE_TOOL_RESULT and place not in kept
    ]
    duplicates = [place for place in dropped if _has_call_before(messages, place)]
    return {
        "messages": [
            _form(entry.body.message, made_up=not entry.entry_id or made_up[place_of[entry.seq]])
            for entry in entries
        ],
        "addedIds": [entry.body.message.tool_call_id.strip() for entry in entries if not entry.entry_id],
        "droppedDuplicateCount": len(duplicates),
        "droppedOrphanCount": len(dropped) - len(duplicates),
    }


def _form(message: Message, *, made_up: bool) -> dict[str, Any]:
    form = comparable(message)
    if made_up and message.role == ROLE_TOOL_RESULT:
        form |= {"content": "made up", "toolCallId": message.tool_call_id.strip()}
    return form


def _answers_nothing(message: Message) -> bool:
    return message.role == ROLE_TOOL_RESULT and not message.tool_call_id.strip()


async def _see_refused(transcript: ScratchTranscript, message: Message) -> None:
    """Check that the service refuses a result without a call id. Raises BadCase if it
    accepts it.
    """
    try:
        await transcript.append([message])
    except MeshError as error:
        if error.reason is Reason.INVALID_REQUEST:
            return
        raise
    raise BadCase("the service stored a tool result that names no call")


def _has_call_before(messages: Sequence[Message], place: int) -> bool:
    """Return whether a dropped result answers a call: then the call has another result."""
    wanted = messages[place].tool_call_id.strip()
    return any(
        block.tool_call.tool_call_id.strip() == wanted
        for message in messages[:place]
        for block in message.content
        if block.HasField("tool_call")
    )
