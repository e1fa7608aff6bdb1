"""The few facts of a span that are shown, and never what was said."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_console.domain.span_facts import span_facts

from tests.support.console.trace_spans import traced

CONTENT = "a secret that somebody told the model"


@pytest.mark.parametrize(
    ("name", "attributes", "facts"),
    [
        ("chat gpt", {"gen_ai.request.model": "gpt"}, []),
        ("invoke_agent a", {"gen_ai.request.model": "gpt"}, ["model gpt"]),
        ("chat gpt", {"gen_ai.usage.input_tokens": 1203, "gen_ai.usage.output_tokens": 88}, ["1,203 tokens in, 88 out"]),
        ("chat gpt", {"gen_ai.usage.input_tokens": 0, "gen_ai.usage.output_tokens": 0}, []),
        ("chat gpt", {"spawnmesh.model_router.cost": 1234}, ["cost 0.001234"]),
        ("invoke_agent a", {"spawnmesh.run.cost_micros": 2_500_000}, ["cost 2.50"]),
        ("execute_tool ls", {"gen_ai.tool.name": "ls"}, []),
        ("call", {"gen_ai.tool.name": "ls"}, ["tool ls"]),
        ("Append", {"rpc.response.status_code": "OK"}, []),
        ("Append", {"rpc.response.status_code": "ABORTED", "error.type": "CLAIM_LOST"}, ["CLAIM_LOST"]),
        ("Append", {"rpc.response.status_code": "ABORTED"}, ["ABORTED"]),
    ],
    ids=str,
)  # fmt: skip
def test_facts_are_those_that_the_name_does_not_say(
    name: str, attributes: dict[str, Any], facts: list[str]
) -> None:
    assert span_facts(traced("a", name=name, **attributes)) == facts


def test_content_of_messages_is_no_fact() -> None:
    names = (
        "gen_ai.system_instructions",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "exception.message",
    )
    attributes: dict[str, Any] = {name: CONTENT for name in names}
    assert span_facts(traced("a", **attributes)) == []


_VALUES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text() | st.lists(st.text())
)
_NAMES = st.sampled_from(
    ["gen_ai.request.model", "gen_ai.tool.name", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
     "spawnmesh.model_router.cost", "spawnmesh.run.cost_micros", "error.type", "rpc.response.status_code"]
)  # fmt: skip


@given(st.dictionaries(_NAMES, _VALUES))
def test_values_of_any_kind_are_short_facts_or_none(attributes: dict[str, Any]) -> None:
    facts = span_facts(traced("a", **attributes))
    assert len(facts) <= 5
    assert all(0 < len(fact) < 120 for fact in facts)


def test_a_long_text_is_cut() -> None:
    attributes: dict[str, Any] = {"error.type": "long" * 100}
    assert span_facts(traced("a", **attributes)) == [("long" * 100)[:80]]
