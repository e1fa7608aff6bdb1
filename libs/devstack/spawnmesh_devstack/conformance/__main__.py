"""Replay cases through a mesh that is started for it, or through a running one."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from spawnmesh_runtime.process import run_process

from spawnmesh_devstack.conformance.areas import AREAS
from spawnmesh_devstack.conformance.mesh import Deployment, find_deployment
from spawnmesh_devstack.conformance.replay import ALL, Replayed, replay_files
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.members import SERVICES

_INTERRUPTED = 130  # the exit code that a shell gives to a program that Ctrl-C ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the differences and the counts. Return 1 if anything differs or if there is nothing to
    replay.
    """
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        deployment = _deployment_of(parser, asked)
        replayed = run_process(replay_files(asked.area, asked.file, deployment=deployment, report=_report))
    except StackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return _print(replayed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spawnmesh_devstack.conformance", description=__doc__)
    parser.add_argument("area", metavar="AREA", help=f"{ALL}, {', '.join(sorted(AREAS))}")
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help=f"a JSON list of cases; for {ALL}, a directory with a file <area>.json for each area",
    )
    parser.add_argument(
        "--mesh",
        metavar="DIR",
        type=Path,
        help="the data directory of a running mesh; without it and without targets one is started",
    )
    parser.add_argument(
        "--target",
        metavar="NAME=HOST:PORT",
        action="append",
        default=[],
        help=f"a service of a running deployment, once for each of {', '.join(SERVICES)} that is needed",
    )
    parser.add_argument(
        "--keys",
        metavar="DIR",
        type=Path,
        help="with --target: the directory with session.pem and client.pem, which sign the calls",
    )
    parser.add_argument("--token", default="", help="with --target: a bearer token for all calls")
    return parser


def _deployment_of(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> Deployment | None:
    if asked.mesh is not None and asked.target:
        parser.error("--mesh names a mesh already; leave out --target")
    if bool(asked.target) != (bool(asked.token) or asked.keys is not None) or (asked.token and asked.keys):
        parser.error("--target needs either --keys or --token, and they need it")
    if asked.mesh is not None:
        return find_deployment(asked.mesh)
    if not asked.target:
        return None
    targets = dict(one.partition("=")[::2] for one in asked.target)
    if unknown := sorted(set(targets) - set(SERVICES)):
        parser.error(f"there is no service {unknown[0]!a}; there are {', '.join(SERVICES)}")
    return Deployment(targets, asked.keys, asked.token)


def _print(replayed: dict[str, Replayed]) -> int:
    for area, result in replayed.items():
        if len(replayed) > 1:
            print(f"{area}:")
        print("\n".join(result.lines()))
    failed = sum(result.failed_count for result in replayed.values())
    if len(replayed) > 1:
        count = sum(len(result.verdicts) for result in replayed.values())
        print(f"{len(replayed)} areas: {count - failed} passed, {failed} failed")
    return 1 if failed else 0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
