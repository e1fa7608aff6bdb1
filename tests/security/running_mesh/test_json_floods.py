"""JSON that is deep, long or full of numbers is refused or stored within bounds, wherever a contract
takes JSON. A field is attacked because its name ends in `_json`, or because JSON_BYTES names it.
"""

import json
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of

from tests.fuzz.rpcs.calls import problem_of
from tests.fuzz.rpcs.memory import sampled_memory
from tests.support.security.every_rpc import SERVED_BY_PLUGINS, RunningMesh, Served, ask
from tests.support.security.forms import Path, fields_of, form_of, set_field
from tests.support.security.raw_calls import METHODS
from tests.support.security.tenants import Filled

JSON_BYTES = {"spawnmesh.transcript.v1.ImportChunk.data", "spawnmesh.transcript.v1.Source.line"}
"""Fields of lines of JSON."""

DEEP = 50_000
FLOODS = {
    "lists that do not end": "[" * DEEP,
    "objects that do not end": '{"a":' * DEEP,
    "deep lists": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "just too deep": "[" * 101 + "]" * 101,
    "numbers": f"[{'0,' * 200_000}0]",
    "numbers by name": "{" + ",".join(f'"{name}":0' for name in range(50_000)) + "}",
    "one name again and again": "{" + '"a":0,' * 100_000 + '"a":0}',
    "a long number": "9" * 200_000,
    "a large number": '{"a":1e999999999}',
    "a small number": '{"a":-1e-999999999}',
    "no number": '{"a":[NaN,Infinity,-Infinity]}',
    "half a character": '{"a":"\\ud800","\\udfff":"\\u0000"}',
    "JSON in JSON": json.dumps(json.dumps(json.dumps({"a": "[" * 5_000}))),
    "a byte order mark": '\ufeff{"a":1}',
    "two documents": "{}{}",
}
LARGE = {
    "more numbers than the limit": f"[{'0,' * 1_000_000}0]",
    # Decoded, it takes 400 MB.
    "two million objects": '{"a":[' + '{"":0},' * 2_000_000 + "0]}",
}


def is_json(field: FieldDescriptor) -> bool:
    return field.name.endswith("_json") or field.full_name in JSON_BYTES


def json_paths(rpc: Served) -> list[Path]:
    return [path for path, field in fields_of(rpc.method.input_type) if is_json(field)]


TAKE_JSON = sorted(
    name
    for name, method in METHODS.items()
    if not name.startswith(SERVED_BY_PLUGINS) and any(is_json(one) for _, one in fields_of(method.input_type))
)


def test_rpcs_that_take_json_are_known() -> None:
    assert {name.rpartition(".")[2] for name in TAKE_JSON} >= {
        "AppendEntries",
        "DispatchBeforeToolCall",
        "Generate",
        "ImportTranscript",
        "PublishEvents",
        "RelayNativeStop",
    }


def _caller(rpc: Served, tenant: Filled) -> str:
    policy = policy_of(rpc.method)
    for kind in (CallerKind.RUN, CallerKind.CLIENT):
        if kind in policy.callers:
            return tenant.token(kind)
    return tenant.token(CallerKind.SERVICE, min(policy.services))


def _messages(rpc: Served, form: Message, path: Path, text: str) -> list[bytes]:
    """Return the request; of a stream its first message, the one with the text, and the last one."""
    if rpc.method.input_type.fields_by_name[path[0]].containing_oneof is None or len(path) != 2:
        return [set_field(form, path, text).SerializeToString()]
    kind = type(form)
    data = kind()
    part = getattr(data, path[0])
    setattr(part, path[1], f"{text}\n".encode())
    return [form.SerializeToString(), data.SerializeToString()]


def _floods(paths: list[Path]) -> Iterator[tuple[Path, str, str]]:
    for path in paths:
        yield from ((path, what, text) for what, text in FLOODS.items())
    for path in {paths[0]: None, paths[-1]: None}:
        yield from ((path, what, text) for what, text in LARGE.items())


@pytest.mark.parametrize("name", TAKE_JSON)
async def test_flood_of_json_ends_with_a_reason(running: RunningMesh, attacker: Filled, name: str) -> None:
    stack = running.stack
    pids = dict(stack.pids)
    problems = []
    async with sampled_memory(lambda: pids) as memory:
        for rpc in (one for one in running.rpcs if one.method.full_name == name):
            form, token = form_of(rpc.method, attacker.ids), _caller(rpc, attacker)
            for number, (path, what, text) in enumerate(_floods(json_paths(rpc))):
                changed = set_field(form, ("request_id",), f"{what} {number}") if _is_append(rpc) else form
                sent = _messages(rpc, changed, path, text)
                answer = await ask(
                    running.channels[rpc.service], rpc.method, token, *sent, seconds=60, may_be_silent=False
                )
                if problem := problem_of(rpc.method, answer):
                    problems.append((".".join(path), what, problem))
    assert problems == []
    assert memory.problems() == []
    assert stack.pids == pids
    await _still_read(running, attacker)


def _is_append(rpc: Served) -> bool:
    return rpc.method.name == "AppendEntries"


async def _still_read(running: RunningMesh, tenant: Filled) -> None:
    """Read the transcript, which may have what was appended, in every way."""
    for name in ("ListEntries", "AssembleContext", "VerifyTranscript", "ExportTranscript", "SearchEntries"):
        [rpc] = [one for one in running.rpcs if one.method.name == name]
        sent = form_of(rpc.method, tenant.ids).SerializeToString()
        token = tenant.token(CallerKind.CLIENT)
        answer = await ask(
            running.channels[rpc.service], rpc.method, token, sent, seconds=60, may_be_silent=False
        )
        assert answer.code in ("OK", "FAILED_PRECONDITION"), (name, answer)
