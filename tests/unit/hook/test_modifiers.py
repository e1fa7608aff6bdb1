"""Merge answers about a model, a prompt, a tool call or a delivery target."""

from hypothesis import given
from hypothesis import strategies as st
from spawnmesh_core.json_text import MAX_DEPTH
from spawnmesh_hook.domain.modifiers import (
    APPROVAL_REASON_MAX_BYTES,
    CONTEXT_MAX_BYTES,
    MergedToolCall,
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


def test_the_first_named_model_wins() -> None:
    assert merge_models([]) == ModelChoice("", "")
    assert merge_models([ModelChoice("a", ""), ModelChoice("b", "x"), ModelChoice("c", "y")]) == ModelChoice(
        "b", "x"
    )


def test_the_first_named_target_wins() -> None:
    assert merge_targets([]) == TargetChoice("", "")
    assert merge_targets(
        [TargetChoice("a", ""), TargetChoice("b", "x"), TargetChoice("c", "y")]
    ) == TargetChoice("b", "x")


def test_prompts_merge_to_first_system_prompt_all_contexts_and_common_tools() -> None:
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


def test_an_empty_list_of_tools_removes_all_and_no_list_keeps_all() -> None:
    assert merge_prompts([PromptChange("a", tools=()), PromptChange("b", tools=("x",))]).tools == ()
    assert merge_prompts([PromptChange("a")]).tools is None


def test_long_contexts_are_cut_before_the_character_that_does_not_fit() -> None:
    merged = merge_prompts(
        [PromptChange("a", context="x"), PromptChange("b", context="é" * CONTEXT_MAX_BYTES)]
    )
    assert merged.context == "x\n\n" + "é" * ((CONTEXT_MAX_BYTES - 3) // 2)


@given(st.lists(st.text(max_size=30_000), max_size=6))
def test_joined_contexts_fit_the_bound(contexts: list[str]) -> None:
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
        approval_reason=st.sampled_from(["", "expensive", "é" * 512]),
    )
)


@given(ANSWERS)
def test_the_first_block_wins_else_the_last_arguments(answers: list[ToolCallAnswer]) -> None:
    merged = merge_tool_call(answers)
    blocks = [answer.block_reason for answer in answers if answer.block_reason]
    rewrites = [answer.arguments_json for answer in answers if answer.arguments_json]
    assert merged.block_reason == (blocks[0] if blocks else "")
    assert merged.arguments_json == (rewrites[-1] if rewrites and not blocks else "")
    approvals = [answer for answer in answers if answer.approval_reason]
    assert bool(merged.decided_by) == bool(blocks or rewrites or approvals)


@given(ANSWERS)
def test_reasons_of_approvals_are_joined_in_order_and_fit_the_bound(answers: list[ToolCallAnswer]) -> None:
    merged = merge_tool_call(answers)
    if any(answer.block_reason for answer in answers):
        assert merged.approval_reason == ""
        return
    approvals = [answer for answer in answers if answer.approval_reason]
    joined = "; ".join(f"{answer.plugin}: {answer.approval_reason}" for answer in approvals)
    assert joined.startswith(merged.approval_reason)
    missing_bytes = len(joined.encode()) - len(merged.approval_reason.encode())
    assert missing_bytes == 0 or APPROVAL_REASON_MAX_BYTES - len(merged.approval_reason.encode()) in (0, 1)
    assert len(merged.approval_reason.encode()) <= APPROVAL_REASON_MAX_BYTES
    contributed = [answer.plugin for answer in answers if answer.arguments_json or answer.approval_reason]
    assert list(merged.decided_by) == contributed


def test_approvals_stand_beside_the_last_rewritten_arguments() -> None:
    answers = [
        ToolCallAnswer("cfo", approval_reason="more than 100 EUR"),
        ToolCallAnswer("scrubber", arguments_json="{}"),
        ToolCallAnswer("idle"),
        ToolCallAnswer("legal", approval_reason="new customer"),
    ]
    reason = "cfo: more than 100 EUR; legal: new customer"
    assert merge_tool_call(answers) == MergedToolCall(
        "{}", "", reason, ("cfo", "scrubber", "legal"), ("scrubber",)
    )
    blocked = [*answers, ToolCallAnswer("guard", block_reason="no")]
    assert merge_tool_call(blocked) == MergedToolCall("", "no", "", ("guard",))


def test_arguments_must_be_a_json_object() -> None:
    assert is_object('{"a": [1]}')
    assert is_object('{"a": ' + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "}")
    assert not is_object('{"a": ' + "[" * 2 * MAX_DEPTH + "]" * 2 * MAX_DEPTH + "}")
    assert is_object('{"a": [' + ",".join(["[]"] * 2 * MAX_DEPTH) + "]}")
    assert not any(map(is_object, ["", "[]", "1", "{", "{'a': 1}", "[" * 100_000]))
