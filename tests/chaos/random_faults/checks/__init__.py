"""The invariants, each a pure function over the facts that returns what violates it."""

from collections.abc import Callable

from tests.chaos.random_faults.checks import (
    appends,
    availability,
    claims,
    content,
    cooldowns,
    objects,
    request_ids,
    results,
    settled,
    streams,
    tenants,
    terminal_states,
    tools,
    transcripts,
)
from tests.chaos.random_faults.facts import Facts

CHECKS: dict[str, Callable[[Facts], list[str]]] = {
    "I1  each run has one terminal state": terminal_states.check,
    "I2  each result is delivered to the parent once": results.check,
    "I3  objects and rows agree": objects.check,
    "I4  transcripts are dense, and their hashes chain": transcripts.check,
    "I5  accepted appends are there, refused ones are not": appends.check_presence,
    "    appends are linearizable": appends.check_order,
    "    claims of transcripts are exclusive": claims.check_writers,
    "    claims of runs are exclusive": claims.check_runs,
    "I6  one request_id gives one resource": request_ids.check,
    "I7  tenants are isolated": tenants.check,
    "I8  no tool is run again blindly": tools.check,
    "I9  no cooldown shrinks": cooldowns.check,
    "I10 content is at rest in the bucket only": content.check,
    "I12 event streams repeat and omit nothing": streams.check,
    "    no accepted run failed": availability.check_runs,
    "    no call failed with an internal error": availability.check_calls,
    "    no process ended by itself": availability.check_processes,
    "    the mesh came to rest": settled.check,
}
