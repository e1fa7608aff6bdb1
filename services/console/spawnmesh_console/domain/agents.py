"""The rules of an agent in sentences."""

from collections.abc import Sequence
from datetime import timedelta

from spawnmesh_console.domain.spans_of_time import whole_span

DEFAULT_APPROVAL_TIMEOUT = timedelta(hours=24)
DEFAULT_TURN_COUNT = 50
DEFAULT_TOKEN_BUDGET = 100_000


def approval_summary(tools: Sequence[str], *, has_destructive: bool) -> str:
    """Return in a few words which calls of an agent a person must approve."""
    parts = [", ".join(tools)] if tools else []
    if has_destructive:
        parts.append("destructive MCP tools")
    return "; ".join(parts)


_FATES = {
    "FAIL": "Then the run fails.",
    "ESCALATE": (
        "Then webhooks are told, and the wait begins once more. After that the answer is no, and the run"
        " goes on."
    ),
}


def approval_sentences(
    tools: Sequence[str], *, has_destructive: bool, timeout: timedelta | None, on_expiry: str
) -> tuple[str, ...]:
    """Return the approval policy in sentences. Without tools, it is about questions alone."""
    sentences = []
    if "*" in tools:
        sentences.append("A person must approve every call of a tool.")
    elif tools:
        sentences.append(f"A person must approve calls of {_joined([_tool(name) for name in tools])}.")
    if has_destructive and "*" not in tools:
        sentences.append(
            "A person must approve calls of MCP tools, unless the tool is known to change nothing."
        )
    if not sentences:
        sentences.append("No call of a tool needs an approval.")
    waits = timeout or DEFAULT_APPROVAL_TIMEOUT
    subject = "A call and a question wait" if tools or has_destructive else "A question waits"
    fate = _FATES.get(on_expiry, "Then the answer is no, and the run goes on.")
    return (*sentences, f"{subject} for {whole_span(waits)}. {fate}")


def _tool(name: str) -> str:
    return f"tools whose names begin with {name[:-1]}" if name.endswith("*") else name


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
