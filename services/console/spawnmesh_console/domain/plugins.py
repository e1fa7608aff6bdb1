"""Hooks, rights and decisions of plugins in words."""

from spawnmesh_console.domain.states import ShownState

_GATES = {"BEFORE_SPAWN", "BEFORE_AGENT_FINALIZE", "BEFORE_TOOL_CALL", "BEFORE_COMPACTION"}
_MODIFIERS = {"BEFORE_MODEL_RESOLVE", "BEFORE_PROMPT_BUILD", "DELIVERY_TARGET"}
_HOOKS = {
    "BEFORE_SPAWN": "may refuse a session before it is spawned",
    "BEFORE_AGENT_FINALIZE": "may send an answer back before it is final",
    "BEFORE_TOOL_CALL": "may change or block a call of a tool, or let a person approve it",
    "BEFORE_COMPACTION": "may refuse that a transcript is summarised, or say what must be kept",
    "BEFORE_MODEL_RESOLVE": "may choose the model that is called",
    "BEFORE_PROMPT_BUILD": "may change what a model reads besides the conversation",
    "DELIVERY_TARGET": "may say where the end of a session is delivered",
    "SUBAGENT_ENDED": "is notified that a child has ended",
    "SUBAGENT_SPAWNED": "is notified that a child was spawned",
    "LLM_INPUT": "is notified that a model is about to be called",
    "LLM_OUTPUT": "is notified that a model has answered",
    "AFTER_TOOL_CALL": "is notified that a call of a tool has ended",
    "AGENT_END": "is notified that a run has ended",
    "SESSION_START": "is notified that a session is ready",
    "SESSION_END": "is notified that a session accepts no more runs",
    "AFTER_COMPACTION": "is notified that a transcript was summarised",
    "APPROVAL_REQUESTED": "is notified that a run waits for a person",
    "APPROVAL_ESCALATED": "is notified that no person decided on an approval in time",
    "APPROVAL_DECIDED": "is notified that an approval does not wait any more",
    "BUDGET_REACHED": "is notified that a run waits for its budget",
    "BUDGET_CHANGED": "is notified that the limits of a budget were changed",
    "FILES_PUBLISHED": "is notified that a run has published files",
}
_GRANTS = {
    "CONVERSATION_ACCESS": "sees tasks, drafts, prompts, answers, and arguments and results of tools",
    "FINALIZE_CONTROL": "may request a revision, or declare an answer final",
    "PROMPT_INJECTION": "may change system prompts and the offered tools, and add text to prompts",
}
_DECISIONS = {
    "ALLOW": ShownState("allowed", "succeeded"),
    "DENY": ShownState("denied", "failed"),
    "CONTINUE": ShownState("no objection", "succeeded"),
    "REVISE": ShownState("sent back", "queued"),
    "FINALIZE": ShownState("declared final", "succeeded"),
    "PROCEED": ShownState("call goes on", "succeeded"),
    "REWRITE": ShownState("arguments changed", "succeeded"),
    "BLOCK": ShownState("call blocked", "failed"),
    "CHOSEN": ShownState("chosen", "succeeded"),
    "CHANGED": ShownState("prompt changed", "succeeded"),
    "COMPACT": ShownState("summary allowed", "succeeded"),
    "KEEP_WHOLE": ShownState("summary refused", "failed"),
    "TOLD": ShownState("received", "succeeded"),
    "FAILED": ShownState("call failed", "failed"),
    "SKIPPED": ShownState("not called", "stopped"),
    "DEAD": ShownState("given up", "failed"),
    "CAPPED": ShownState("revision not granted", "stopped"),
    "REQUIRE_APPROVAL": ShownState("a person decides", "waiting"),
}
_ACTIVE = ShownState("active", "succeeded")
_PAUSED = ShownState("paused", "stopped")
_UNKNOWN = ShownState("unknown", "closed")

DECISIONS = tuple(_DECISIONS)
"""The decisions that a log can be filtered by."""


def hook_name(hook: str) -> str:
    """Return the name of a hook as plugins write it."""
    return hook.lower()


def hook_words(hook: str) -> str:
    """Return the right or the news that a plugin has at this hook."""
    return _HOOKS.get(hook, "is called at a hook that this console does not know")


def hook_kind(hook: str) -> str:
    """Return the kind of hook."""
    return "gate" if hook in _GATES else "modifier" if hook in _MODIFIERS else "observer"


def grant_words(grant: str) -> str:
    """Return the right in words."""
    return _GRANTS.get(grant, "has a right that this console does not know")


def failure_words(policy: str) -> str:
    """Return what a failure of the plugin means."""
    if policy == "CLOSED":
        return "closed: its failure is an objection"
    return "open: its failure changes nothing"


def plugin_state(*, is_paused: bool) -> ShownState:
    """Return whether the plugin is called."""
    return _PAUSED if is_paused else _ACTIVE


def decision_state(decision: str) -> ShownState:
    """Return how the outcome of a call is shown."""
    return _DECISIONS.get(decision, _UNKNOWN)


def is_session(session_id: str) -> bool:
    """Return whether the id is of a session, and not of a test of a plugin."""
    return session_id.startswith("ses_") and len(session_id) == 30
