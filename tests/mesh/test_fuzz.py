"""A short run of the fuzzer with a fixed seed. `make fuzz MINUTES=…` runs a long one."""

from uuid import uuid4

from spawnmesh_devstack.stack import Stack

from tests.fuzz.rpcs.fuzzer import fuzzing
from tests.support.security.raw_calls import METHODS

SEED = 20


async def test_random_messages_and_bytes_are_refused_with_a_reason(stack: Stack) -> None:
    async with fuzzing(stack, SEED, f"fuzz-{uuid4().hex[:8]}") as (fuzzer, _memory):
        await fuzzer.run_rounds(4)
    assert not fuzzer.problems, "\n".join(fuzzer.problems)
    called = {name.partition(" ")[2] for name in fuzzer.called}
    assert called >= {name.removeprefix("spawnmesh.") for name in METHODS}
    assert {"OK", "INVALID_ARGUMENT INVALID_REQUEST", "NOT_FOUND NOT_FOUND"} <= fuzzer.outcomes.keys()
