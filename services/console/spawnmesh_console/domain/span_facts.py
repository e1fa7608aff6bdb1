"""The few facts of a span that are shown. Content of messages is not among them."""

from collections.abc import Mapping

from spawnmesh_core.spans import Span

from spawnmesh_console.domain.budget_limits import short_money
from spawnmesh_console.domain.shown_text import beginning

_MAX_CHARS = 80
_COSTS = ("spawnmesh.model_router.cost", "spawnmesh.run.cost_micros")


def span_facts(span: Span) -> list[str]:
    """Return the model, the tokens, the cost, the tool and the status, as far as the span has them
    and its name does not say them.
    """
    facts = []
    for name, words in (("gen_ai.request.model", "model"), ("gen_ai.tool.name", "tool")):
        text = _text(span.attributes, name)
        if text and text not in span.name:
            facts.append(f"{words} {text}")
    read, written = (_count(span.attributes, f"gen_ai.usage.{part}_tokens") for part in ("input", "output"))
    if read or written:
        facts.append(f"{read:,} tokens in, {written:,} out")
    cost = sum(_count(span.attributes, name) for name in _COSTS)
    if cost:
        facts.append(f"cost {short_money(cost)}")
    status = _text(span.attributes, "error.type") or _text(span.attributes, "rpc.response.status_code")
    if status and status != "OK":
        facts.append(status)
    return facts


def _text(attributes: Mapping[str, object], name: str) -> str:
    value = attributes.get(name)
    return beginning(value, _MAX_CHARS)[0] if isinstance(value, str) else ""


def _count(attributes: Mapping[str, object], name: str) -> int:
    value = attributes.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
