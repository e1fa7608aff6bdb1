"""A policy gate: rules over the final answer and the run, in the Common Expression Language.

`CEL_POLICY_FILE` names a JSON list of rules, each `{"name", "require", "reason"}`. An answer that
does not fulfil `require` is sent back with the reason, once in a run for the same rules.
Expressions read `draft` (text), `draft_bytes`, `agent_id`, `session_id`, `run_id` and
`revision_count`:

    [{"name": "sources",
      "require": "agent_id != 'researcher' || draft.contains('Sources:')",
      "reason": "Name your sources."}]
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import cel
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from spawnmesh.hook.v1.decision_pb2 import FinalizeDecision
from spawnmesh.hook.v1.event_pb2 import BeforeAgentFinalizeEvent
from spawnmesh_plugin.decisions import revise
from spawnmesh_plugin.handlers import hook

# A comprehension costs the size of its list, and nested ones the product: without these limits a
# rule could take minutes.
_MAX_EXPRESSION_CHARS = 2048
_MAX_COMPREHENSIONS = 2
_COMPREHENSION = re.compile(r"\.\s*(all|exists|exists_one|existsOne|map|filter)\s*\(")


class Rule(BaseModel):
    """A rule. Its name is not shown; it counts how often drafts were sent back."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    require: str = Field(min_length=1, max_length=_MAX_EXPRESSION_CHARS)
    reason: str = Field(min_length=1, max_length=1000)


class CelPolicySettings(BaseSettings):
    """Settings from `CEL_POLICY_…` in the environment."""

    model_config = SettingsConfigDict(env_prefix="CEL_POLICY_", frozen=True, extra="ignore")

    file: Path


class CelPolicy:
    """Compiled rules. Raises ValueError, naming the rule, for one that does not compile."""

    def __init__(self, rules: list[Rule]) -> None:
        self._rules = [(rule, _compiled(rule)) for rule in rules]

    def broken(self, event: BeforeAgentFinalizeEvent) -> list[Rule]:
        """Return the rules that the draft breaks.

        Raises ValueError for a rule that is neither true nor false.
        """
        facts: dict[str, Any] = {
            "draft": event.draft_text,
            "draft_bytes": event.draft_bytes,
            "agent_id": event.agent_id,
            "session_id": event.session_id,
            "run_id": event.run_id,
            "revision_count": event.revision_count,
        }
        return [rule for rule, program in self._rules if not _holds(rule, program, facts)]


def read_policy(file: Path) -> CelPolicy:
    """Read the rules of a file.

    Raises ValueError for a malformed file, OSError for an unreadable one.
    """
    try:
        return CelPolicy(TypeAdapter(list[Rule]).validate_json(file.read_bytes()))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{file.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@hook("before_agent_finalize")
def judge(event: BeforeAgentFinalizeEvent) -> FinalizeDecision | None:
    """Send back a draft that breaks rules, with the reasons of all of them."""
    broken = _policy().broken(event)
    if not broken:
        return None
    return revise(
        "\n".join(rule.reason for rule in broken),
        objection_key="+".join(rule.name for rule in broken)[:256],
    )


@cache
def _policy() -> CelPolicy:
    # it comes from the environment
    return read_policy(CelPolicySettings().file)  # type: ignore[call-arg]


def _compiled(rule: Rule) -> "cel.Program":
    if len(_COMPREHENSION.findall(rule.require)) > _MAX_COMPREHENSIONS:
        raise ValueError(f"rule {rule.name} goes through lists more than {_MAX_COMPREHENSIONS} times")
    try:
        return cel.compile(rule.require)
    except ValueError:
        raise ValueError(f"rule {rule.name} is no expression") from None


def _holds(rule: Rule, program: "cel.Program", facts: dict[str, Any]) -> bool:
    try:
        found = program.execute(facts)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"rule {rule.name} cannot be evaluated for this draft") from None
    if not isinstance(found, bool):
        raise ValueError(f"rule {rule.name} is neither true nor false")
    return found
