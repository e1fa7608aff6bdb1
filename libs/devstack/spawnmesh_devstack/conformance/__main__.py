"""The command line: replay a file of cases through a mesh that is started for it, or through a
running one.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from spawnmesh_runtime.process import run_process

from spawnmesh_devstack.conformance.areas import AREAS
from spawnmesh_devstack.conformance.replay import replay_file
from spawnmesh_devstack.failures import StackError

_INTERRUPTED = 130  # the exit code that a shell gives to a program that Ctrl-C ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the differences and the counts. Return 1 if anything differs or if there is nothing to
    replay.
    """
    parser = argparse.ArgumentParser(prog="python -m spawnmesh_devstack.conformance", description=__doc__)
    parser.add_argument("area", metavar="AREA", help=", ".join(sorted(AREAS)))
    parser.add_argument("file", metavar="FILE", type=Path, help="a JSON list of cases")
    parser.add_argument(
        "--mesh",
        metavar="DIR",
        type=Path,
        help="the data directory of a running mesh; without it one is started",
    )
    asked = parser.parse_args(arguments)
    try:
        replayed = run_process(replay_file(asked.area, asked.file, mesh_dir=asked.mesh, report=_report))
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    print("\n".join(replayed.lines()))
    return 1 if replayed.failed_count else 0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
