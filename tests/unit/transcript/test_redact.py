"""Redaction removes attachment content from every spelling of a spawn call, and changes nothing
else."""

import hashlib
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.errors import MeshError
from spawnmesh_core.json_text import MAX_NODES, NotJson, TooManyNodes
from spawnmesh_core.reasons import Reason
from spawnmesh_transcript.domain.redact import redact_block

SECRET = "SECRET-7f3a payload"
_CASES = json.loads((Path(__file__).parent / "cases" / "redact_spawn.json").read_text())


def _marker(content: bytes) -> dict[str, Any]:
    return {"$redacted": "attachment", "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def _attachments(**more: Any) -> dict[str, Any]:
    return {"task": "do it", "attachments": [{"name": "a.txt", "content": SECRET, **more}]}


@pytest.mark.parametrize("case", _CASES, ids=[case["id"] for case in _CASES])
@pytest.mark.parametrize("name_from", ["block", "elsewhere"])
def test_example_case(case: dict[str, Any], name_from: str) -> None:
    block = case["given"]["block"]
    stored = redact_block(block["name"].strip() if name_from == "block" else "read", json.dumps(block))
    for text in case["expect"]["must_not_contain"]:
        assert text not in stored
    for key in ("arguments", "input"):
        if key in block:
            item = json.loads(stored)[key]["attachments"][0]
            assert item["content"] == _marker(block[key]["attachments"][0]["content"].encode())
            assert item["name"] == block[key]["attachments"][0]["name"]


@pytest.mark.parametrize(
    "arguments",
    [
        _attachments(),
        json.dumps(_attachments()),
        json.dumps(json.dumps(_attachments())),
        json.dumps(json.dumps(json.dumps(_attachments()))),
        {"request": _attachments()},
        {"requests": [_attachments(), [_attachments()]]},
        {"request": json.dumps(_attachments())},
        {"attachments": json.dumps(_attachments()["attachments"])},
        {"attachments": [json.dumps(_attachments()["attachments"][0])]},
        {"attachments": _attachments()["attachments"][0]},
        {"attachments": {"a.txt": SECRET}},
        {"attachments": {"a.txt": {"content": SECRET}}},
        {"attachments": [SECRET]},
        {"attachments": SECRET},
        {"attachments": [[{"content": SECRET}]]},
        {"attachments": [{"name": "a", "content": [{"type": "text", "text": SECRET}]}]},
        {"attachments": [{"name": "a", "file": {"data": SECRET}}]},
        {"attachments": [{"name": "a", "file": json.dumps({"content": SECRET})}]},
        {"attachments": [{"name": "a", " Content ": SECRET}]},
        {"attachments": [{"name": "a", "value": SECRET}]},
        {"attachments": [{"name": "a", "url": f"data:text/plain,{SECRET}"}]},
        {"attachments": [{"name": "a", "source": {"uri": f" DATA:,{SECRET}"}}]},
        {"Attachments": [{"name": "a", "CONTENT": SECRET}]},
        json.dumps(_attachments())[:-4],
        json.dumps(_attachments()) + " trailing",
        f"attachments: {SECRET}",
        {"draft": json.dumps(_attachments())[:-1]},
        {"draft": json.dumps([_attachments()])[:-1]},
        {"draft": json.dumps(json.dumps(_attachments()))[:-1]},
        {"draft": json.dumps(_attachments())[:-1].replace("attachments", r"\u0061ttachments")},
        {"draft": str(_attachments())},
        {"attachments": [{"name": "a", "bytes": SECRET}]},
        {"attachments": {"name": "a", "size": SECRET}},
        {"attachments": [{"name": "a", "note": SECRET}]},
        {"files": [{"name": "a", "content": SECRET}]},
        {"files": {"a.txt": SECRET}},
        {"file": SECRET, "task": "do it"},
        {"content": SECRET},
        [SECRET],
    ],
    ids=str,
)
@pytest.mark.parametrize("key", ["arguments", "input", "Arguments", "partialJson"])
def test_content_is_nowhere_in_the_stored_block(arguments: Any, key: str) -> None:
    stored = redact_block(
        "sessions_spawn",
        json.dumps({"type": "toolCall", "id": "c", "name": "sessions_spawn", key: arguments}),
    )
    assert SECRET not in stored
    assert SECRET.split()[0] not in stored
    assert "$redacted" in stored
    json.loads(stored)


@pytest.mark.parametrize(
    "name",
    [
        "sessions_spawn",
        "spawn_session",
        " Sessions_Spawn\n",
        "SPAWN_SESSION",
        "\tspawn_session",
        "ſpawn_session",
        "mcp__mesh__sessions_spawn",
        "mesh.spawn_session",
        "functions.mesh__Sessions_Spawn",
    ],
)
def test_both_tool_names_are_spawn_calls(name: str) -> None:
    assert SECRET not in redact_block("read", json.dumps({"name": name, "input": _attachments()}))
    assert SECRET not in redact_block(name, json.dumps({"name": "read", "input": _attachments()}))
    assert SECRET not in redact_block(name, json.dumps({"input": _attachments()}))


def test_escaped_names_and_keys_are_decoded() -> None:
    block = (
        r'{"n\u0061me":"sessions\u005fspawn","input":{"\u0061ttachments":[{"cont\u0065nt":"SECRET-7f3a"}]}}'
    )
    assert "SECRET" not in redact_block("read", block)


def test_the_name_may_be_wrapped_with_arguments_as_text() -> None:
    block = {
        "type": "function",
        "function": {"name": "sessions_spawn", "arguments": json.dumps(_attachments())},
    }
    stored = redact_block("call", json.dumps(block))
    assert SECRET not in stored
    inner = json.loads(json.loads(stored)["function"]["arguments"])
    assert inner["task"] == "do it"
    assert inner["attachments"][0]["content"] == _marker(SECRET.encode())


def test_every_occurrence_of_a_repeated_key_is_redacted() -> None:
    item = '{"content":"SECRET-1","name":"a","content":"SECRET-2"}'
    block = f'{{"name":"sessions_spawn","input":{{"attachments":[{item}],"attachments":[{item}]}},"input":{{"attachments":{item}}}}}'
    assert "SECRET" not in redact_block("sessions_spawn", block)


def test_everything_else_stays_byte_for_byte() -> None:
    block = (
        '{ "type":"toolUse" ,"name":" sessions_spawn ","input":{"n":1.50e+2,"big":12345678901234567890,"label":"\\u00e9\\/",'
        '"attachments":[ {"name":"a","tags":[ ],"size":3,"content" : "%s","type":"text"} ],"task":"t" },"extra":{"a":[ ]} }'
    )
    stored = redact_block("sessions_spawn", block % SECRET)
    marker = json.dumps(_marker(SECRET.encode()), separators=(",", ":"))
    assert stored == block.replace('"%s"', "%s") % marker


def test_a_string_around_the_arguments_stays_a_string() -> None:
    arguments = json.dumps({"task": "é", **_attachments()}, ensure_ascii=False)
    stored = redact_block("sessions_spawn", json.dumps({"arguments": arguments}, ensure_ascii=False))
    assert json.loads(json.loads(stored)["arguments"])["task"] == "do it"
    assert "\\u" not in stored


@pytest.mark.parametrize(
    "arguments",
    [
        {"task": "read the attachments", "attachments": []},
        {"task": "content", "runTimeoutSeconds": 60, "attachAs": {"mountPath": "in"}},
        {"attachments": None},
        {"attachments": [{"name": "a", "content": None}]},
        '{"task": "x"}',
        "",
    ],
    ids=str,
)
def test_a_block_with_nothing_to_redact_stays_the_same_text(arguments: Any) -> None:
    block = json.dumps({"name": " Sessions_Spawn", "arguments": arguments}, indent=1)
    assert redact_block("Sessions_Spawn", block) is block


def test_other_tools_keep_their_attachments() -> None:
    block = json.dumps({"name": "send_mail", "input": {"why": "sessions_spawn", **_attachments()}})
    assert redact_block("send_mail", block) is block


def test_the_marker_describes_the_decoded_bytes() -> None:
    raw = bytes(range(256))
    wrapped = b64encode(raw).decode()[:100] + "\n" + b64encode(raw).decode()[100:]
    block = {"input": {"attachments": [{"encoding": "BASE64", "content": wrapped}]}}
    assert json.loads(redact_block("sessions_spawn", json.dumps(block)))["input"]["attachments"][0][
        "content"
    ] == _marker(raw)


@pytest.mark.parametrize("encoding", ["utf8", "base64"])
def test_the_marker_describes_the_text_if_it_is_not_base64(encoding: str) -> None:
    block = {"input": {"attachments": [{"encoding": encoding, "content": "não é base64"}]}}
    stored = json.loads(redact_block("sessions_spawn", json.dumps(block)))
    assert stored["input"]["attachments"][0]["content"] == _marker("não é base64".encode())


def test_lone_surrogates_are_accepted() -> None:
    block = '{"input":"{\\"attachments\\":[{\\"content\\":\\"SECRET\\\\ud800\\"}],\\"task\\":\\"\\ud800\\"}"}'
    stored = redact_block("sessions_spawn", block)
    assert "SECRET" not in stored
    stored.encode()
    assert json.loads(json.loads(stored)["input"])["task"] == "\ud800"


@pytest.mark.parametrize(
    "attachments",
    [
        [{"name": "a", "content": _marker(b"x")}],
        [{"name": "a", "content": json.dumps(_marker(b"x"))}],
        [{"name": "a", "content": json.dumps(json.dumps(_marker(b"x")))}],
        [{"name": "a", "content": '{"\\u0024redacted":1}'}],
        [
            {
                "name": "a",
                "encoding": "base64",
                "content": b64encode(json.dumps(_marker(b"x")).encode()).decode(),
            }
        ],
        [{"name": "a", "content": [_marker(b"x")]}],
        [{"name": "a", "content": {"type": "text", "text": _marker(b"x")}}],
        [_marker(b"x")],
        _marker(b"x"),
        json.dumps(_marker(b"x")),
    ],
    ids=str,
)
def test_a_marker_never_becomes_a_file(attachments: Any) -> None:
    with pytest.raises(MeshError) as refused:
        redact_block("sessions_spawn", json.dumps({"arguments": {"attachments": attachments}}))
    assert refused.value.reason is Reason.ATTACHMENT_CONTENT_IS_MARKER


@pytest.mark.parametrize("content", [[83, 69, 67], {"bytes": [83, 69, 67]}, int("7" * 40)], ids=str)
def test_content_as_numbers_is_replaced(content: Any) -> None:
    block = json.dumps({"input": {"task": "t", "timeout": 60, "file": content}})
    stored = json.loads(redact_block("sessions_spawn", block))["input"]
    assert (stored["task"], stored["timeout"]) == ("t", 60)
    assert "$redacted" in json.dumps(stored["file"])
    assert "83" not in json.dumps(stored["file"]).replace(_marker(b"[83, 69, 67]")["sha256"], "")


def test_content_that_mentions_markers_is_not_a_marker() -> None:
    block = {
        "arguments": {"attachments": [{"content": 'see {"$redacted": 1}'}, {"content": '["$redacted"]'}]}
    }
    assert "see" not in redact_block("sessions_spawn", json.dumps(block))


@pytest.mark.parametrize("block", ["{", "[]", '"x"', '{"a":1} {"b":2}', "nope", '{"a":' * 100_000])
@pytest.mark.parametrize("name", ["read", "sessions_spawn"])
def test_a_block_that_is_no_object_is_refused(block: str, name: str) -> None:
    with pytest.raises(NotJson):
        redact_block(name, block)


def test_deep_nesting_through_strings_is_refused() -> None:
    value: Any = _attachments()
    for _ in range(4):
        for _ in range(40):
            value = [value]
        value = json.dumps(value)
    with pytest.raises(NotJson):
        redact_block("sessions_spawn", json.dumps({"input": value}))


def test_numbers_of_any_length_are_accepted() -> None:
    block = '{"name":"calc","input":{"n":' + "9" * 10_000 + "}}"
    assert redact_block("calc", block) is block


_JUNK = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(
    _JUNK,
    st.lists(st.sampled_from(["object", "list", "text"]), max_size=6),
    st.sampled_from(["arguments", "input", "deep"]),
)
def test_content_is_removed_from_any_wrapping(junk: Any, wrappings: list[str], key: str) -> None:
    value: Any = {"attachments": [{"name": "n", "junk": junk, "content": SECRET}]}
    for wrapping in wrappings:
        value = {"object": {"w": value, "junk": junk}, "list": [junk, value], "text": json.dumps(value)}[
            wrapping
        ]
    stored = redact_block("spawn_session", json.dumps({"id": "c", key: value}))
    assert SECRET not in stored
    json.loads(stored)


@pytest.mark.parametrize(
    "calls",
    [
        [{"name": "sessions_spawn", "arguments": _attachments()}],
        {"a": {"tool": " Spawn_Session", "input": json.dumps(_attachments())}},
        [{"recipient_name": "functions.sessions_spawn", "parameters": _attachments()}],
        [{"function": "sessions_spawn", "arguments": json.dumps(_attachments())}],
        [{"tool": "sessions_spawn", "task": "do it", "files": [{"content": SECRET}]}],
    ],
    ids=str,
)
@pytest.mark.parametrize("as_text", [False, True])
def test_a_call_within_a_call_is_redacted(calls: Any, as_text: bool) -> None:
    arguments = {"calls": calls, "kept": "é"}
    block = {"name": "batch", "arguments": json.dumps(arguments) if as_text else arguments}
    stored = redact_block("batch", json.dumps(block))
    assert SECRET not in stored
    assert "$redacted" in stored
    made = json.loads(stored)["arguments"]
    assert (json.loads(made) if as_text else made)["kept"] == "é"


def test_a_call_quoted_in_a_text_is_not_redacted() -> None:
    spawn = json.dumps({"name": "sessions_spawn", "arguments": _attachments()})
    block = json.dumps({"name": "write", "arguments": {"path": "a.json", "content": spawn}})
    assert redact_block("write", block) is block


def test_values_in_the_strings_of_a_call_count_toward_its_limit() -> None:
    part = json.dumps([0] * (MAX_NODES // 2))
    with pytest.raises(TooManyNodes):
        redact_block("spawn_session", json.dumps({"arguments": [part, part]}))


def test_a_call_of_another_tool_has_the_same_limit() -> None:
    with pytest.raises(TooManyNodes):
        redact_block("read", json.dumps({"a": [0] * MAX_NODES}))
    text = json.dumps({"a": "," * MAX_NODES})
    assert redact_block("read", text) == text


def test_content_of_many_values_that_mentions_a_marker_is_redacted() -> None:
    content = json.dumps({"log": [{"text": "was redacted"}] * 1_000})
    stored = redact_block("spawn_session", json.dumps({"arguments": {"attachments": [{"content": content}]}}))
    assert json.loads(stored)["arguments"]["attachments"][0]["content"] == _marker(content.encode())
