"""`make seeded-bugs AREA=…`: seed each bug into a copy of the repository, and see that a test fails."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.seeded_bugs.bug import SeededBug
from tests.chaos.seeded_bugs.bugs import BUGS_BY_AREA, SEEDED_BUGS
from tests.chaos.seeded_bugs.sandbox import Sandbox, make_sandbox


def main() -> int:
    """Print a line for each bug. Return 1 if a bug was not caught, or a test fails without one."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.seeded_bugs")
    parser.add_argument("--area", choices=sorted(BUGS_BY_AREA), help="only bugs of this area")
    area = parser.parse_args().area
    bugs = BUGS_BY_AREA[area] if area else SEEDED_BUGS
    folder = Path(tempfile.mkdtemp(prefix="spawnmesh-bugs-"))
    folder.chmod(0o755)  # PostgreSQL runs as another account, and must reach what is in it.
    sandbox = make_sandbox(folder)
    tests = sorted({path for bug in bugs for path in bug.tests})
    log = folder / "without-a-bug.log"
    if sandbox.run_tests(tests, log) != 0:
        print(f"the tests fail without a bug; see {log}")
        print(f"0 passed, {len(bugs)} failed")
        return 1
    caught = sum(_is_caught(sandbox, folder, number, bug) for number, bug in enumerate(bugs, 1))
    missed = len(bugs) - caught
    if missed:
        print(f"the output of the tests is in {folder}")
    else:
        shutil.rmtree(folder)
    print(f"{caught} passed, {missed} failed")
    return 1 if missed else 0


def _is_caught(sandbox: Sandbox, folder: Path, number: int, bug: SeededBug) -> bool:
    log = folder / f"bug-{number}.log"
    with sandbox.seeded(bug):
        code = sandbox.run_tests(bug.tests, log)
    failed = [line for line in log.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
    # A bug must fail a test, and not keep tests from being collected.
    caught = code != 0 and bool(failed) and all(line.startswith("FAILED") for line in failed)
    tests = [line.removeprefix("FAILED ").split(" - ")[0] for line in failed]
    if caught and sandbox.run_tests(tests, log.with_suffix(".again.log")) != 0:
        caught = False
        print("        the test fails without the bug too:", flush=True)
    print(f"{'caught' if caught else 'MISSED'}  {bug.name}", flush=True)
    for test in tests[:1]:
        print(f"        {test}", flush=True)
    return caught


if __name__ == "__main__":
    sys.exit(main())
