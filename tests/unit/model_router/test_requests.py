"""Conversations in the wire formats of providers."""

from typing import Any

from spawnmesh.content.v1 import message_pb2 as content
from spawnmesh_model_router.clients.providers.anthropic_request import messages_request
from spawnmesh_model_router.clients.providers.openai_request import chat_request
from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest, without_images

from tests.support.model_router.requests import (
    DATA,
    READ,
    TALK,
    assistant,
    call,
    image,
    make_request,
    result,
    text,
    thinking,
    user,
)


def openai(question: ProviderRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = chat_request(question, "m", 100, compatible=True)["messages"]
    return messages


def anthropic(question: ProviderRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = messages_request(question, "m", 100)["messages"]
    return messages


def test_openai_results_follow_their_calls_and_images_follow_the_results() -> None:
    assert openai(make_request(*TALK, system="Be brief.")) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}},
                {"id": "c2", "type": "function", "function": {"name": "read", "arguments": "cut {"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "boom"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Images from the tool results above:"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
            ],
        },
        {"role": "user", "content": "go on"},
    ]


def test_anthropic_results_of_one_answer_share_a_message_with_what_follows() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
    assert anthropic(make_request(*TALK)) == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}},
                {"type": "tool_use", "id": "c2", "name": "read", "input": {"arguments": "cut {"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "one"}, picture],
                    "is_error": False,
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "content": [{"type": "text", "text": "boom"}],
                    "is_error": True,
                },
                {"type": "text", "text": "go on"},
            ],
        },
    ]


def test_thoughts_that_are_not_signed_stay_at_home() -> None:
    messages = (user(text("hi")), assistant(thinking("hm", "")), user(text("and?")))
    assert [message["role"] for message in anthropic(make_request(*messages))] == ["user", "user"]
    assert [message["role"] for message in openai(make_request(*messages))] == ["user", "user"]


def test_anthropic_gets_no_answer_that_ends_with_a_thought() -> None:
    signed = thinking("hm", "c2ln")
    messages = (
        user(text("hi")),
        assistant(signed),
        user(text("and?")),
        assistant(signed, text("well"), signed),
    )
    sent = anthropic(make_request(*messages, user(text("so?"))))
    assert [
        [block["type"] for block in message["content"]] for message in sent if message["role"] == "assistant"
    ] == [["thinking", "text"]]


def test_odd_call_ids_change_alike_in_call_and_result() -> None:
    talk = make_request(
        user(text("hi")), assistant(call("functions.read:0")), result("functions.read:0", text("one"))
    )
    _, said, answered = openai(talk)
    assert said["tool_calls"][0]["id"] == answered["tool_call_id"] != "functions.read:0"
    _, said, answered = anthropic(talk)
    assert said["content"][0]["id"] == answered["content"][0]["tool_use_id"] != "functions.read:0"


def test_an_empty_message_is_sent_as_something() -> None:
    assert anthropic(make_request(user())) == [
        {"role": "user", "content": [{"type": "text", "text": "[empty message]"}]}
    ]
    assert openai(make_request(user())) == [{"role": "user", "content": ""}]


def test_the_output_limit_is_the_smaller_of_request_and_model() -> None:
    assert messages_request(make_request(user(text("x"))), "m", 100)["max_tokens"] == 100
    assert messages_request(make_request(user(text("x")), most=7), "m", 100)["max_tokens"] == 7
    assert (
        chat_request(make_request(user(text("x")), most=700), "m", 100, compatible=True)["max_tokens"] == 100
    )
    assert (
        chat_request(make_request(user(text("x")), most=7), "m", 100, compatible=False)[
            "max_completion_tokens"
        ]
        == 7
    )
    assert (
        not {"max_tokens", "max_completion_tokens"}
        & chat_request(make_request(user(text("x"))), "m", 9, compatible=True).keys()
    )


def test_tools_are_declared_in_each_format() -> None:
    question = make_request(user(text("x")), tools=(READ,))
    assert chat_request(question, "m", 100, compatible=True)["tools"] == [
        {
            "type": "function",
            "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object"}},
        }
    ]
    assert messages_request(question, "m", 100)["tools"] == [
        {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}}
    ]


def test_leaving_images_out_changes_nothing_else() -> None:
    before = user(text("see"), image(), text("and say"))
    kept = content.Message()
    kept.CopyFrom(before)
    question = make_request(before, TALK[1])
    stripped = without_images(question)
    assert [block.text.text for block in stripped.messages[0].content] == [
        "see",
        "[An image was left out here.]",
        "and say",
    ]
    assert stripped.messages[1] == TALK[1]
    assert before == kept
    assert question.image_count == 1
    assert stripped.image_count == 0
