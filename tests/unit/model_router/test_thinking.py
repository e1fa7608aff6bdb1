"""The thinking level of a model, and its form in each provider's format."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh.content.v1 import message_pb2 as content
from spawnmesh_model_router.clients.providers.anthropic_request import (
    accepts_thinking_budget,
    messages_request,
)
from spawnmesh_model_router.clients.providers.gemini_request import generate_request
from spawnmesh_model_router.clients.providers.openai_request import chat_request
from spawnmesh_model_router.domain.router_config import RouterConfig
from spawnmesh_model_router.domain.thinking import MIN_BUDGET_TOKENS, ThinkingLevel, ThinkingSetting, choose

from tests.support.model_router.requests import assistant, call, make_request, result, text, thinking, user

OFF, MINIMAL, LOW, MEDIUM, HIGH = ThinkingLevel
QUESTION = make_request(user(text("x")))


@pytest.mark.parametrize(
    ("wanted", "has", "level"),
    [
        (HIGH, {LOW: "low", HIGH: "high"}, HIGH),
        (MEDIUM, {LOW: "low", HIGH: "high"}, LOW),
        (MINIMAL, {LOW: "low", HIGH: "high"}, LOW),
        (OFF, {LOW: "low", HIGH: "high"}, LOW),
        (OFF, {OFF: "none", HIGH: "high"}, OFF),
        (LOW, {OFF: "none", HIGH: "high"}, HIGH),
        (LOW, {OFF: 0}, None),
        (LOW, {}, None),
    ],
)
def test_the_highest_level_up_to_the_wanted_one_is_chosen(
    wanted: ThinkingLevel, has: dict[ThinkingLevel, int | str], level: ThinkingLevel | None
) -> None:
    told = choose(wanted, has, 8192)
    assert told == (None if level is None else ThinkingSetting(level, has[level]))


@given(
    st.sampled_from(ThinkingLevel),
    st.dictionaries(st.sampled_from(list(ThinkingLevel)[1:]), st.integers(1024, 40_000)),
    st.integers(1, 50_000),
)
def test_a_budget_leaves_tokens_for_the_answer(
    wanted: ThinkingLevel, has: dict[ThinkingLevel, int], max_output: int
) -> None:
    told = choose(wanted, has, max_output)
    if told is None:
        assert not has or max_output < 2 * MIN_BUDGET_TOKENS
    else:
        assert isinstance(told.value, int)
        assert MIN_BUDGET_TOKENS <= told.value <= min(has[told.level], max_output - MIN_BUDGET_TOKENS)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (ThinkingSetting(OFF, 0), {"thinking": {"type": "disabled"}}),
        (ThinkingSetting(LOW, 2048), {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (
            ThinkingSetting(HIGH, "high"),
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        ),
        (None, {}),
    ],
)
def test_anthropic_gets_a_budget_or_an_effort(told: ThinkingSetting | None, said: dict[str, Any]) -> None:
    body = messages_request(QUESTION, "m", 8192, told)
    assert {key: body[key] for key in ("thinking", "output_config") if key in body} == said


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (ThinkingSetting(OFF, 0), {"thinking_budget": 0, "include_thoughts": False}),
        (ThinkingSetting(LOW, 512), {"thinking_budget": 512, "include_thoughts": True}),
        (ThinkingSetting(HIGH, "high"), {"thinking_level": "high", "include_thoughts": True}),
    ],
)
def test_gemini_gets_a_budget_or_a_level(told: ThinkingSetting, said: dict[str, Any]) -> None:
    assert generate_request(QUESTION, 8192, told)[1]["thinking_config"] == said
    assert "thinking_config" not in generate_request(QUESTION, 8192)[1]


def test_openai_gets_an_effort() -> None:
    assert (
        chat_request(QUESTION, "m", 9, compatible=False, thinking=ThinkingSetting(OFF, "none"))[
            "reasoning_effort"
        ]
        == "none"
    )
    assert "reasoning_effort" not in chat_request(QUESTION, "m", 9, compatible=False)


SIGNED = thinking("hm", "c2ln")


@pytest.mark.parametrize(
    ("messages", "can"),
    [
        ((user(text("hi")),), True),
        ((user(text("hi")), assistant(text("ho")), user(text("and?"))), True),
        ((user(text("hi")), assistant(SIGNED, call("c1")), result("c1", text("one"))), True),
        (
            (user(text("hi")), assistant(thinking("", "redacted_thinking:c2Vh"), call("c1")), result("c1")),
            True,
        ),
        ((user(text("hi")), assistant(call("c1")), result("c1", text("one"))), False),
        ((user(text("hi")), assistant(thinking("hm", ""), call("c1")), result("c1", text("one"))), False),
        ((user(text("hi")), assistant(text("so"), SIGNED, call("c1")), result("c1", text("one"))), False),
        (
            (
                user(text("hi")),
                assistant(call("c1")),
                result("c1", text("one")),
                assistant(SIGNED, call("c2")),
                result("c2", text("two")),
            ),
            True,
        ),
    ],
)
def test_anthropic_begins_to_think_only_where_the_newest_calls_were_thought_about(
    messages: tuple[content.Message, ...], can: bool
) -> None:
    assert accepts_thinking_budget(messages) is can


def test_a_thought_that_another_provider_signed_stays_away_from_anthropic() -> None:
    messages = (user(text("hi")), assistant(thinking("hm", "openai_reasoning:gAAA"), text("ho")))
    sent = messages_request(make_request(*messages), "m", 100)["messages"]
    assert sent[1]["content"] == [{"type": "text", "text": "ho"}]


def config(kind: str, **model: Any) -> str:
    providers = {"p": {"kind": kind, "base_url": "http://x", "credentials": ["env:KEY"]}}
    models = {"p/m": {"context_window": 9, "max_output": 9, **model}}
    return json.dumps({"primary": "p/m", "providers": providers, "models": models})


@pytest.mark.parametrize(
    ("kind", "model", "problem"),
    [
        ("anthropic", {"thinking": {"low": 0}}, "more than 0"),
        ("anthropic", {"thinking": {"off": 5}}, "of off is 0"),
        ("gemini", {"thinking": {"low": -1}}, "more than 0"),
        ("openai", {"thinking": {"low": "Lots of it"}}, "lower-case"),
        ("openai", {"thinking": {"low": 2048}}, "takes words"),
        ("openai_compatible", {"thinking": {"off": 0}}, "takes words"),
        ("gemini", {"thinking": {"much": 2048}}, "thinking"),
        ("anthropic", {"api": "responses"}, "has an api"),
    ],
)
def test_an_invalid_setting_is_refused_when_the_router_starts(
    kind: str, model: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        RouterConfig.model_validate_json(config(kind, **model))


def test_levels_may_mix_words_and_budgets_where_the_provider_takes_both() -> None:
    told = {"off": 0, "low": 2048, "high": "high"}
    [model] = RouterConfig.model_validate_json(config("gemini", thinking=told)).models.values()
    assert model.thinking == {OFF: 0, LOW: 2048, HIGH: "high"}
