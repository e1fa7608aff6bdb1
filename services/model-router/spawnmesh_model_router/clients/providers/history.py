"""Adapt a request to its provider: names of tools, ids of calls and blank texts.

Each API has its own alphabet and length for the names of tools. A conversation can have calls of
several providers, and some providers number the calls of each answer from 0.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from spawnmesh.content.v1 import message_pb2

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.answer import CallPiece, Piece, ToolCall
from spawnmesh_model_router.domain.router_config import ProviderKind


@dataclass(frozen=True, slots=True)
class _Alphabet:
    """The names that an API accepts. `other` are the characters that a name may not have."""

    pattern: re.Pattern[str]
    other: re.Pattern[str]
    max_length: int


_PLAIN: Final = re.compile(r"[^A-Za-z0-9_-]")
_ALPHABETS: Final[dict[ProviderKind, _Alphabet]] = {
    "anthropic": _Alphabet(re.compile(r"[A-Za-z0-9_-]{1,128}"), _PLAIN, 128),
    "gemini": _Alphabet(re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}"), _PLAIN, 63),
    "openai": _Alphabet(re.compile(r"[A-Za-z0-9_-]{1,64}"), _PLAIN, 64),
    "openai_compatible": _Alphabet(re.compile(r"[A-Za-z0-9_-]{1,64}"), _PLAIN, 64),
}
_DIGEST_CHARS: Final = 10


@dataclass(frozen=True, slots=True)
class AdaptedRequest:
    """The request as a provider accepts it.

    `originals` has the names of the tools that have another name there.
    """

    request: ProviderRequest
    originals: Mapping[str, str]

    def restore(self, piece: Piece) -> Piece:
        """Return the piece of the answer with the tool's own name."""
        if not isinstance(piece, ToolCall | CallPiece) or (name := self.originals.get(piece.name)) is None:
            return piece
        if isinstance(piece, CallPiece):
            return replace(piece, name=name)
        written = re.compile(rf'"name":\s*{re.escape(json.dumps(piece.name))}')
        block = written.sub(lambda _: f'"name":{json.dumps(name)}', piece.block_json, count=1)
        return ToolCall(piece.call_id, name, block)


def adapt_request(request: ProviderRequest, kind: ProviderKind) -> AdaptedRequest:
    """Return the request for the provider.

    - A name outside the provider's alphabet, or too long, becomes another one with a digest, the
      same in each call.
    - A call whose id an earlier answer used gets another id, and so do its results.
    - A text of blanks alone is left out for Anthropic, which refuses it.
    """
    names = {name: _accepted(name, _ALPHABETS[kind]) for name in _names(request)}
    changed = {name: accepted for name, accepted in names.items() if name != accepted}
    ids = _CallIds()
    messages = tuple(
        _mend(message, changed, ids, without_blanks=kind == "anthropic") for message in request.messages
    )
    tools = (
        tuple(replace(tool, name=names[tool.name]) for tool in request.tools) if changed else request.tools
    )
    prompt = request.system_prompt if request.system_prompt.strip() else ""
    adapted = replace(request, messages=messages, tools=tools, system_prompt=prompt)
    return AdaptedRequest(adapted, {accepted: name for name, accepted in changed.items()})


def _names(request: ProviderRequest) -> Iterable[str]:
    yield from (tool.name for tool in request.tools)
    for message in request.messages:
        if message.tool_name:
            yield message.tool_name
        yield from (block.tool_call.name for block in message.content if block.HasField("tool_call"))


def _accepted(name: str, alphabet: _Alphabet) -> str:
    if alphabet.pattern.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]
    kept = alphabet.other.sub("_", name)[: alphabet.max_length - _DIGEST_CHARS - 2]
    return f"t{kept}_{digest}" if not kept[:1].isalpha() else f"{kept}_{digest}"


class _CallIds:
    """The ids of the calls so far. An id that an answer uses again becomes another one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def of_call(self, call_id: str) -> str:
        self._counts[call_id] = self._counts.get(call_id, 0) + 1
        return self.of_result(call_id)

    def of_result(self, call_id: str) -> str:
        """Return the id of the newest call that has this one."""
        count = self._counts.get(call_id, 1)
        if count <= 1:
            return call_id
        return f"call_{hashlib.sha256(f'{count} {call_id}'.encode()).hexdigest()[:32]}"


def _mend(
    message: message_pb2.Message, names: Mapping[str, str], ids: _CallIds, *, without_blanks: bool
) -> message_pb2.Message:
    """Return the message itself if nothing in it changes."""
    calls = {
        index: ids.of_call(block.tool_call.tool_call_id)
        for index, block in enumerate(message.content)
        if block.HasField("tool_call")
    }
    result_id = ids.of_result(message.tool_call_id) if message.tool_call_id else ""
    blanks = [i for i, block in enumerate(message.content) if without_blanks and _is_blank(block)]
    renamed = message.tool_name in names or any(
        message.content[i].tool_call.name in names or message.content[i].tool_call.tool_call_id != call_id
        for i, call_id in calls.items()
    )
    if not (renamed or blanks or result_id != message.tool_call_id):
        return message
    adapted = message_pb2.Message()
    adapted.CopyFrom(message)
    adapted.tool_name = names.get(message.tool_name, message.tool_name)
    adapted.tool_call_id = result_id
    for index, call_id in calls.items():
        call = adapted.content[index].tool_call
        call.name, call.tool_call_id = names.get(call.name, call.name), call_id
    for index in reversed(blanks):
        del adapted.content[index]
    return adapted


def _is_blank(block: message_pb2.ContentBlock) -> bool:
    return block.HasField("text") and not block.text.text.strip()
