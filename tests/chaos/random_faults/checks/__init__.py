"""The invariants, each a pure function over the facts that returns what violates it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.chaos.random_faults.checks import (
    appends,
    approvals,
    availability,
    budgets,
    claims,
    content,
    cooldowns,
    inputs,
    messages,
    objects,
    observers,
    outputs,
    refusals,
    request_ids,
    results,
    settled,
    spans,
    streams,
    tenants,
    terminal_states,
    tools,
    transcripts,
    webhooks,
)
from tests.chaos.random_faults.facts import Facts


@dataclass(frozen=True)
class Check:
    """An invariant. `count_inputs` returns how many things of the facts it is about: without any
    it cannot fail, and shows nothing.
    """

    name: str
    find: Callable[[Facts], list[str]]
    count_inputs: Callable[[Facts], int]


CHECKS = (
    Check("I1  each run has one terminal state", terminal_states.check, inputs.runs),
    Check("I2  each result is delivered to the parent once", results.check, inputs.announcements),
    Check("    each accepted message is read once", messages.check, inputs.sends),
    Check("    plugins hear how spawns that they allowed end", observers.check, inputs.allowed_spawns),
    Check("    webhooks receive each event, always as the same message", webhooks.check, inputs.received),
    Check("I3  objects and rows agree", objects.check, inputs.attachment_sets),
    Check("    each publication is one output set, told once", outputs.check, inputs.output_sets),
    Check("I4  transcripts are dense, and their hashes chain", transcripts.check, inputs.transcripts),
    Check("I5  accepted appends are there, refused ones are not", appends.check_presence, inputs.appends),
    Check("    appends are linearizable", appends.check_order, inputs.appends),
    Check("    claims of transcripts are exclusive", claims.check_writers, inputs.acquired_transcripts),
    Check("    claims of runs are exclusive", claims.check_runs, inputs.claims),
    Check("I6  one request_id gives one resource", request_ids.check, inputs.spawns),
    Check("I7  tenants are isolated", tenants.check, inputs.pries),
    Check("I8  no tool is run again blindly", tools.check, inputs.tool_results),
    Check("I9  no cooldown shrinks", cooldowns.check, inputs.cooldowns),
    Check("I10 content is at rest in the bucket only", content.check, inputs.scanned_files),
    Check("I11 calls run as they were approved, once", approvals.check, inputs.approvals),
    Check("    budgets count each model call, and nothing waits in vain", budgets.check, inputs.budgets),
    Check("I12 event streams repeat and omit nothing", streams.check, inputs.watched_events),
    Check("    a new watch gives every stored event", streams.check_again, inputs.watches_again),
    Check("    no span lacks its parent", spans.check, inputs.spans),
    Check("    no accepted run failed", availability.check_runs, inputs.runs),
    Check("    no call failed with an internal error, or was refused", refusals.check, inputs.calls),
    Check("    no process ended by itself", availability.check_processes, inputs.watched_processes),
    Check("    the mesh came to rest", settled.check, inputs.sessions),
)
ALL = frozenset(check.name for check in CHECKS)
NO_INPUT = "there was nothing to check"


def judge(facts: Facts, required: Iterable[str] = ALL) -> dict[str, list[str]]:
    """Return what each check found, by its name.

    A check that has no input found that, if it is required, and is left out otherwise.
    """
    required = set(required)
    if unknown := required - ALL:
        raise ValueError(f"there are no checks {sorted(unknown)}")
    found: dict[str, list[str]] = {}
    for check in CHECKS:
        if check.count_inputs(facts):
            found[check.name] = check.find(facts)
        elif check.name in required:
            found[check.name] = [NO_INPUT, *check.find(facts)]
    return found
