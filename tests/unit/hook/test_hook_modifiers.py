"""How several answers about a model, a prompt or a tool call become one."""

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_hook.domain.modifiers import (
    CONTEXT_MAX_BYTES,
    ModelChoice,
    PromptChange,
    TargetChoice,
    ToolCallAnswer,
    is_object,
    merge_models,
    merge_prompts,
    merge_targets,
    merge_tool_call,
)


def test_the_first_model_that_is_named_is_asked() -> None:
    assert merge_models([]) == ModelChoice("", "")
    assert merge_models([ModelChoice("a", ""), ModelChoice("b", "x"), ModelChoice("c", "y")]) == ModelChoice("b", "x")


def test_the_first_target_that_is_named() -> None:
    assert merge_targets([]) == TargetChoice("", "")
    assert merge_targets([TargetChoice("a", ""), TargetChoice("b", "x"), TargetChoice("c", "y")]) == TargetChoice(
        "b", "x"
    )


def test_the_first_system_prompt_all_contexts_and_the_tools_on_every_list() -> None:
    merged = merge_prompts(
        [
            PromptChange("a", context="one", tools=("read", "write", "read")),
            PromptChange("b", system_prompt="first"),
            PromptChange("c", system_prompt="second", context="two"),
            PromptChange("d", tools=("write", "exec")),
            PromptChange("e"),
            PromptChange("f", system_prompt="third"),
        ]
    )
    assert (merged.system_prompt, merged.context, merged.tools) == ("first", "one\n\ntwo", ("write",))
    assert merged.decided_by == ("a", "b", "c", "d")


def test_a_list_without_tools_leaves_none_and_no_list_leaves_all() -> None:
    assert merge_prompts([PromptChange("a", tools=()), PromptChange("b", tools=("x",))]).tools == ()
    assert merge_prompts([PromptChange("a")]).tools is None


@given(st.lists(st.text(max_size=30_000), max_size=6))
def test_joined_contexts_fit_the_contract(contexts: list[str]) -> None:
    merged = merge_prompts([PromptChange("p", context=context) for context in contexts])
    assert len(merged.context.encode()) <= CONTEXT_MAX_BYTES
    assert "\n\n".join(filter(None, contexts)).startswith(merged.context)


@given(st.lists(st.frozensets(st.sampled_from("abcdef")), min_size=1))
def test_a_further_list_never_adds_a_tool(lists: list[frozenset[str]]) -> None:
    merged = merge_prompts([PromptChange("p", tools=tuple(sorted(tools))) for tools in lists])
    assert merged.tools is not None
    assert set(merged.tools) == frozenset.intersection(*lists)


ANSWERS = st.lists(
    st.builds(
        ToolCallAnswer,
        plugin=st.text("pq", min_size=1),
        arguments_json=st.sampled_from(["", "{}", '{"a":1}']),
        block_reason=st.sampled_from(["", "", "no", "never"]),
    )
)


@given(ANSWERS)
def test_a_block_is_sticky_and_otherwise_the_last_arguments_count(answers: list[ToolCallAnswer]) -> None:
    merged = merge_tool_call(answers)
    blocks = [answer.block_reason for answer in answers if answer.block_reason]
    rewrites = [answer.arguments_json for answer in answers if answer.arguments_json]
    assert merged.block_reason == (blocks[0] if blocks else "")
    assert merged.arguments_json == (rewrites[-1] if rewrites and not blocks else "")
    assert bool(merged.decided_by) == bool(blocks or rewrites)


def test_arguments_are_a_json_object() -> None:
    assert is_object('{"a": [1]}')
    assert not any(map(is_object, ["", "[]", "1", "{", "{'a': 1}", "[" * 100_000]))
