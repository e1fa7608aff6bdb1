"""Answers as a model writes them, piece by piece, in the wire format of each API."""

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, pairwise
from random import Random
from typing import Any

from aiohttp import web
from spawnmesh_model_router.domain.tool_calls import decode_json
from spawnmesh_model_router.domain.unicode import repair_surrogates

from tests.support.model_router.fixtures import Router, World
from tests.support.model_router.gemini import said as said_by_gemini
from tests.support.model_router.provider import USAGE_CHUNK, Answering, chunk, tool_part
from tests.support.model_router.responses import COMPLETED, CREATED, called, incomplete, said

Event = dict[str, Any]
APIS = ("chat", "responses", "anthropic", "gemini")
SIGNATURE = "c2lnbmVk"


@dataclass(frozen=True)
class WrittenThought:
    """A thought of several parts, each in pieces. Only OpenAI's responses keep the parts apart."""

    parts: tuple[tuple[str, ...], ...]

    @property
    def pieces(self) -> tuple[str, ...]:
        return tuple(piece for part in self.parts for piece in part)


@dataclass(frozen=True)
class WrittenText:
    pieces: tuple[str, ...]


@dataclass(frozen=True)
class WrittenCall:
    call_id: str
    name: str
    pieces: tuple[str, ...]

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


Written = WrittenThought | WrittenText | WrittenCall


@dataclass(frozen=True)
class ApiModels:
    """A router with a model of each API."""

    router: Router
    models: dict[str, str]

    def short(self, api: str) -> str:
        """Return the name by which the provider is asked."""
        return self.models[api].partition("/")[2]


async def open_apis(world: World, **settings: Any) -> ApiModels:
    config, google = world.config(), f"g{secrets.token_hex(4)}"
    size = {"context_window": 128_000, "max_output": 4096}
    credentials = ["env:KEY"]
    config["providers"][google] = {
        "kind": "gemini",
        "base_url": world.provider.base_url,
        "credentials": credentials,
    }
    models = {
        "chat": world.ref("one"),
        "responses": world.ref("answering"),
        "anthropic": f"{world.anthropic}/claude",
        "gemini": f"{google}/flash",
    }
    config["models"] |= {
        models["responses"]: {**size, "api": "responses"},
        models["gemini"]: {**size, "vision": True},
    }
    return ApiModels(await world.router(config, **settings), models)


def cut(text: str, random: Random) -> tuple[str, ...]:
    """Return the text in pieces, which are cut anywhere: also within a character of two halves."""
    raw = text.encode("utf-16-le", "surrogatepass")
    places = sorted(
        {0, len(raw), *(2 * random.randrange(len(raw) // 2 + 1) for _ in range(random.randrange(4)))}
    )
    return tuple(raw[i:j].decode("utf-16-le", "surrogatepass") for i, j in pairwise(places))


def mixed(lists: Sequence[Sequence[Event]], random: Random) -> list[Event]:
    """Return the events of all lists. Those of each list stay in order."""
    left = [list(events) for events in lists]
    order = [place for place, events in enumerate(left) for _ in events]
    random.shuffle(order)
    return [left[place].pop(0) for place in order]


def by_chat(item: Written, place: int, *, ids: str = "first") -> list[Event]:
    """Return the chunks of an item. A call has its id in the first or the second chunk, or has none."""
    match item:
        case WrittenThought():
            return [chunk({"reasoning_content": piece}) for piece in item.pieces]
        case WrittenText():
            return [chunk({"content": piece}) for piece in item.pieces]
        case WrittenCall():
            first = tool_part(place, "", item.call_id if ids == "first" else None, item.name)
            rest = [tool_part(place, piece) for piece in item.pieces]
            if ids == "late":
                rest[:1] = [tool_part(place, "".join(item.pieces[:1]), item.call_id)]
            return [first, *rest]


def by_responses(item: Written, place: int, *, ids: str = "first") -> list[Event]:
    match item:
        case WrittenThought():
            return reasoned_in_parts(item.parts, place)
        case WrittenText():
            return said(*item.pieces, place=place)
        case WrittenCall():
            events = called(item.call_id, item.name, *item.pieces, place=place)
            late = {"none": events, "late": events[:1]}.get(ids, [])
            for event in late:
                event.get("item", {}).pop("call_id", None)
            return events


def reasoned_in_parts(parts: Sequence[Sequence[str]], place: int, *, sealed: str = "gAAA") -> list[Event]:
    """Return a thought whose summary has several parts."""
    item = {"id": f"rs_{place}", "type": "reasoning", "summary": [], "encrypted_content": sealed}
    events: list[Event] = [{"type": "response.output_item.added", "output_index": place, "item": item}]
    for index, pieces in enumerate(parts):
        at = {"item_id": f"rs_{place}", "output_index": place, "summary_index": index}
        events += [
            {"type": "response.reasoning_summary_text.delta", **at, "delta": piece} for piece in pieces
        ]
    summary = [{"type": "summary_text", "text": "".join(pieces)} for pieces in parts]
    done = {"type": "response.output_item.done", "output_index": place, "item": {**item, "summary": summary}}
    return [*events, done]


def by_anthropic(item: Written, place: int, *, ids: str = "first") -> list[Event]:
    match item:
        case WrittenThought():
            start: Event = {"type": "thinking", "thinking": "", "signature": ""}
            deltas: list[Event] = [{"type": "thinking_delta", "thinking": piece} for piece in item.pieces]
            deltas.append({"type": "signature_delta", "signature": SIGNATURE})
        case WrittenText():
            start = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in item.pieces]
        case WrittenCall():
            start = {"type": "tool_use", "name": item.name, "input": {}}
            start |= {"id": item.call_id} if ids == "first" else {}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in item.pieces]
    return [
        {"type": "content_block_start", "index": place, "content_block": start},
        *({"type": "content_block_delta", "index": place, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": place},
    ]


def by_gemini(item: Written, place: int, *, ids: str = "first") -> list[Event]:
    """Return the chunks of an item. The SDK reads no halves of characters."""
    match item:
        case WrittenCall():
            arguments = decode_json(repair_surrogates(item.arguments))
            call = {"name": item.name, "args": arguments if isinstance(arguments, dict) else {}}
            call |= {"id": item.call_id} if ids == "first" else {}
            return [said_by_gemini({"functionCall": call})]
        case _:
            clean = repair_surrogates("".join(item.pieces))
            ends = [*accumulate(map(len, item.pieces))]
            pieces = [clean[i:j] for i, j in pairwise([0, *ends[:-1], len(clean)])]
            more = {"thought": True} if isinstance(item, WrittenThought) else {}
            return [said_by_gemini({"text": piece, **more}) for piece in pieces if piece]


WRITERS = {"chat": by_chat, "responses": by_responses, "anthropic": by_anthropic, "gemini": by_gemini}
_MESSAGE = {"id": "msg_7", "type": "message", "role": "assistant", "content": [], "model": "claude-served"}
BEGINNINGS: dict[str, list[Event]] = {
    "chat": [chunk({"role": "assistant", "content": ""})],
    "responses": CREATED,
    "anthropic": [
        {
            "type": "message_start",
            "message": {**_MESSAGE, "stop_reason": None, "usage": {"input_tokens": 10, "output_tokens": 1}},
        }
    ],
    "gemini": [],
}


def ending(api: str, *, is_cut: bool = False) -> list[Event]:
    """Return the end of an answer of the model's own choice, or at the limit of the output."""
    match api:
        case "chat":
            return [chunk({}, "length" if is_cut else "stop"), USAGE_CHUNK]
        case "responses":
            return [incomplete("max_output_tokens") if is_cut else COMPLETED]
        case "anthropic":
            stop = {"stop_reason": "max_tokens" if is_cut else "end_turn", "stop_sequence": None}
            return [
                {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 42}},
                {"type": "message_stop"},
            ]
        case _:
            return [said_by_gemini(finish="MAX_TOKENS" if is_cut else "STOP")]


def written(api: str, *items: Written, ids: str = "first") -> list[Event]:
    """Return the events of the items, one behind the other, without the end of the answer."""
    events = (event for place, item in enumerate(items) for event in WRITERS[api](item, place, ids=ids))
    return [*BEGINNINGS[api], *events]


def in_packets(events: Iterable[Event], sizes: Sequence[int] = (1 << 20,)) -> Answering:
    """Stream the events in packets of these numbers of bytes, over and over."""
    data = "".join(
        (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n"
        for event in events
    ).encode()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        start = 0
        for size in cycle(sizes):
            await response.write(data[start : start + size])
            start += size
            if start >= len(data):
                break
        await response.write_eof()
        return response

    return answer
