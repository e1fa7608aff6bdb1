"""A message of very many tiny elements is refused before it fills the memory of a service.

Each RPC is attacked at each repeated field of its request, at any depth, and with unknown fields. A
new RPC is attacked because it is in the contracts.
"""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.interceptors.validate import MAX_ELEMENTS

from tests.fuzz.rpcs.calls import problem_of
from tests.fuzz.rpcs.memory import sampled_memory
from tests.support.security.every_rpc import SERVED_BY_PLUGINS, Answer, RunningMesh, Served, ask
from tests.support.security.raw_calls import METHODS, allowed_token
from tests.support.waiting import eventually

ABOVE = 2 * MAX_ELEMENTS
BELOW = MAX_ELEMENTS * 3 // 4
UNKNOWN_NUMBER = 15_000
_VARINT, _LENGTH = 0, 2

NAMES = sorted(name for name in METHODS if not name.startswith(SERVED_BY_PLUGINS))


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def with_tag(number: int, data: bytes) -> bytes:
    """Return a field with bytes, a text or a message."""
    return varint(number << 3 | _LENGTH) + varint(len(data)) + data


def element(field: FieldDescriptor) -> bytes:
    """Return the smallest element of a repeated field that is not packed."""
    if field.message_type is None and field.type not in (
        FieldDescriptor.TYPE_STRING,
        FieldDescriptor.TYPE_BYTES,
    ):
        return varint(field.number << 3 | _VARINT) + b"\0"
    return with_tag(field.number, b"")


def floods(kind: Descriptor, count: int, inside: frozenset[str] = frozenset()) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each repeated field with a message of so many elements of it. Fields of a
    message inside a message of its own type are left out.
    """
    for field in kind.fields:
        if field.is_repeated:
            yield field.name, element(field) * count
            if field.message_type is None and field.is_packed:
                yield f"{field.name}, packed", with_tag(field.number, bytes(count))
        if field.message_type is not None and field.message_type.full_name not in inside:
            for name, data in floods(field.message_type, count, inside | {kind.full_name}):
                yield f"{field.name}.{name}", with_tag(field.number, data)


def floods_of(rpc: Served, count: int) -> Iterator[tuple[str, bytes]]:
    yield from floods(rpc.method.input_type, count)
    yield "unknown texts", with_tag(UNKNOWN_NUMBER, b"") * count
    yield "unknown groups", (varint(UNKNOWN_NUMBER << 3 | 3) + varint(UNKNOWN_NUMBER << 3 | 4)) * (count // 2)


def test_rpcs_with_repeated_messages_are_attacked_there() -> None:
    generate = METHODS["spawnmesh.model_router.v1.ModelRouterService.Generate"].input_type
    names = {name for name, _ in floods(generate, 1)}
    assert {"messages", "messages.content", "tools", "fallback_models"} <= names


async def _answer(running: RunningMesh, rpc: Served, data: bytes, *, may_be_silent: bool) -> Answer:
    # A tenant for each: the fields of one have a rate.
    token = allowed_token(running.stack.keys, rpc.method, f"t-{uuid4().hex[:12]}")

    async def answer_within_the_rate() -> Answer | None:
        got = await ask(
            running.channels[rpc.service], rpc.method, token, data, seconds=60, may_be_silent=may_be_silent
        )
        return None if got.reason is Reason.RATE_LIMITED else got

    answer = await eventually(answer_within_the_rate)
    assert answer is not None
    return answer


@pytest.mark.parametrize("name", NAMES)
async def test_flood_of_elements_is_refused_and_fills_no_memory(running: RunningMesh, name: str) -> None:
    pids = dict(running.stack.pids)
    problems = []
    async with sampled_memory(lambda: pids) as memory:
        for rpc in (one for one in running.rpcs if one.method.full_name == name):
            for what, data in floods_of(rpc, ABOVE):
                answer = await _answer(running, rpc, data, may_be_silent=False)
                expected = ("INVALID_ARGUMENT", Reason.INVALID_REQUEST, ("request",))
                if (answer.code, answer.reason, answer.fields) != expected or "fields" not in answer.text:
                    problems.append((rpc.name, what, answer.code, answer.text))
            for what, data in floods_of(rpc, BELOW):
                answer = await _answer(running, rpc, data, may_be_silent=True)
                if problem := problem_of(rpc.method, answer):
                    problems.append((rpc.name, what, problem, ""))
    assert problems == []
    assert memory.problems() == []
    assert running.stack.pids == pids
