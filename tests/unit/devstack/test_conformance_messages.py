"""Messages of session files become the contract's, and what it has no place for changes no outcome."""

import json
from typing import Any

import pytest
from spawnmesh.content.v1 import message_pb2 as pb
from spawnmesh_devstack.conformance.cases import BadCase
from spawnmesh_devstack.conformance.messages import comparable, is_made_up, messages_of
from spawnmesh_devstack.conformance.tool_calls import tool_call

CALL = {"type": "toolCall", "id": "a", "name": "read", "arguments": {"path": "é"}}


def asking(*blocks: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks), **more}


def result(call_id: Any, **more: Any) -> dict[str, Any]:
    return {"role": "toolResult", "toolCallId": call_id, "toolName": " read ", "content": "ok", **more}


def calls_of(*sources: Any) -> list[str]:
    return [
        block.tool_call.tool_call_id
        for message in messages_of(list(sources), "messages")
        for block in message.content
        if block.HasField("tool_call")
    ]


def test_text_is_one_block_however_it_is_written() -> None:
    plain, listed = messages_of(
        [{"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "messages",
    )
    assert plain == listed
    assert plain == pb.Message(role=pb.ROLE_USER, content=[pb.ContentBlock(text=pb.Text(text="hi"))])


@pytest.mark.parametrize("kind", ["toolCall", "toolUse", "functionCall", "tool_use"])
def test_call_of_any_shape_is_a_call_with_its_block_as_it_came(kind: str) -> None:
    block = {**CALL, "type": kind}
    [message] = messages_of([asking(block)], "messages")
    [call] = [block.tool_call for block in message.content]
    assert (call.tool_call_id, call.name, json.loads(call.block_json)) == ("a", "read", block)


def test_result_keeps_its_id_as_it_came_and_whether_it_failed() -> None:
    [message] = messages_of([result(" a ", isError=True)], "messages")
    assert comparable(message) == {
        "role": "toolResult",
        "content": [{"text": "ok"}],
        "toolCallId": " a ",
        "isError": True,
        "toolName": "read",
    }


def test_commands_and_what_extensions_say_are_messages_too() -> None:
    bash, custom = messages_of(
        [
            {"role": "bashExecution", "command": "ls", "output": "a.txt", "exitCode": 0},
            {"role": "custom", "customType": "note", "content": "x"},
        ],
        "messages",
    )
    assert comparable(bash) == {"role": "bashExecution", "content": [{"text": "a.txt"}], "command": "ls"}
    assert comparable(custom) == {"role": "custom", "content": [{"text": "x"}], "customType": "note"}


@pytest.mark.parametrize("stop", ["error", "aborted"])
def test_call_that_was_broken_off_is_none_unless_something_answers_it(stop: str) -> None:
    broken = asking(CALL, stopReason=stop)
    assert calls_of(broken, {"role": "user", "content": "x"}) == []
    assert calls_of(broken, result(" a ")) == ["a"]
    assert calls_of(broken, result("b")) == []


def test_answer_to_a_later_call_of_the_same_id_is_none_to_the_broken_one() -> None:
    assert calls_of(asking(CALL, stopReason="error"), asking(CALL, stopReason="toolUse"), result("a")) == [
        "a"
    ]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "t"},
        {**CALL, "id": " "},
        {"type": "text", "text": 5},
        {"type": [], "id": "a"},
    ],
)
def test_block_that_the_contract_has_no_kind_for_is_carried_as_its_json(block: dict[str, Any]) -> None:
    [message] = messages_of([asking(block)], "messages")
    assert json.loads(message.content[0].text.text) == block


def test_lone_surrogates_are_carried_and_stay_apart() -> None:
    one, other = messages_of(
        [{"role": "user", "content": "\ud800"}, {"role": "user", "content": "\ud801"}], "messages"
    )
    assert one != other
    [message] = messages_of(
        [asking({**CALL, "id": "\udc00", "name": "\udc01", "arguments": "\udc02"})], "messages"
    )
    assert json.loads(message.content[0].tool_call.block_json)["arguments"] == "\udc02"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "narrator", "content": "x"},
        {"content": "x"},
        {"role": ["user"]},
        {"role": "user", "content": 5},
        {"role": "user", "content": ["x"]},
        {"role": "toolResult", "toolCallId": 5},
        "x",
    ],
)
def test_message_that_cannot_be_carried_is_a_bad_case(message: Any) -> None:
    with pytest.raises(BadCase, match=r"messages\[0\]"):
        messages_of([message], "messages")


def test_made_up_result_is_known_by_its_details_or_its_words() -> None:
    said = [{"type": "text", "text": "[x] Missing tool result in history; inserted synthetic error result."}]
    assert is_made_up(result("a", isError=True, details={"xSyntheticMissingToolResult": True}))
    assert is_made_up(result("a", isError=True, content=said))
    assert not is_made_up(result("a", isError=True))
    assert not is_made_up(result("a", content=said))


@pytest.mark.parametrize(
    ("block", "name"),
    [
        ({"name": " x "}, " x "),
        ({"function": {"name": "f"}}, "f"),
        ({"name": " ", "toolName": "t"}, "t"),
        ({"name": 5, "function": "f"}, "unknown"),
    ],
)
def test_call_is_called_what_its_block_calls_it(block: dict[str, Any], name: str) -> None:
    assert tool_call(block, "a").name == name


@pytest.mark.parametrize(
    "name", ["toolCallId", "toolUseId", "tool_call_id", "tool_use_id", "callId", "call_id"]
)
def test_results_name_their_call_in_any_spelling(name: str) -> None:
    (message,) = messages_of([{"role": "toolResult", name: "a", "content": "ok"}], "messages")
    assert message.tool_call_id == "a"
