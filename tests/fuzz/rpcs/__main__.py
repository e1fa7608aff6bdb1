"""`python -m tests.fuzz.rpcs [--minutes 1] [--seed N]` calls every RPC of a fresh mesh with random
messages and with bytes that are nearly a message.

The RPCs are those that the services report by reflection, health and reflection themselves, and
those of a plugin. Each call must end with OK, or with a canonical code and a reason: never INTERNAL
or UNKNOWN, and never only with its deadline. Meanwhile the memory of all processes is bounded.
Afterwards they are the same and answer, and a session still runs to its answer. The exit code is 1
if something of this does not hold.
"""

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from spawnmesh_devstack.stack import open_stack
from spawnmesh_runtime.process import run_process

from tests.fuzz.rpcs.fuzzer import fuzzing


async def fuzz(minutes: float, seed: int) -> bool:
    """Fuzz a fresh mesh, print what was found, and return whether all was well."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-fuzz-", ignore_cleanup_errors=True) as folder:
        async with (
            open_stack(Path(folder) / "data", _tell) as stack,
            fuzzing(stack, seed, "fuzz") as (fuzzer, memory),
        ):
            await fuzzer.run_for(minutes * 60)
    for outcome, count in fuzzer.outcomes.most_common():
        print(f"{count:8} {outcome}")
    for problem in fuzzer.problems:
        print(problem)
    print(f"memory in MiB, at first, at most and at last: {memory.summary()}")
    calls = fuzzer.called.total()
    print(f"seed {seed}: {calls} calls of {len(fuzzer.called)} RPCs, {len(fuzzer.problems)} problems")
    return not fuzzer.problems


def main() -> None:
    """Fuzz for the given time."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.rpcs")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    given = parser.parse_args()
    _tell(f"seed {given.seed}")
    if not run_process(fuzz(given.minutes, given.seed)):
        sys.exit(1)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
