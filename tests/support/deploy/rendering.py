"""Render the chart with Helm and look at its objects."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[3]
RENDER = ROOT / "deploy" / "helm" / "render.py"
CI = ROOT / "deploy" / "helm" / "spawnmesh" / "ci"
VALUE_SETS = ("minimal", "trial", "production")
OVERLAYS = tuple(sorted(file.stem for file in CI.glob("*.yaml") if file.stem not in VALUE_SETS))
"""Value sets that are given over another one."""
VARIANTS = (*((name,) for name in VALUE_SETS), *(("production", name) for name in OVERLAYS))

Object = dict[str, Any]


class Rendered(NamedTuple):
    """The end of one run of render.py."""

    returncode: int
    stdout: str
    stderr: str


@cache
def _server() -> subprocess.Popen[str]:
    """Start the process that renders. Its input ends with this process, and it ends with its input.

    The library of Helm has a runtime with threads and signals, which the tests keep out of their
    own process.
    """
    server = Path(__file__).with_name("render_server.py")
    command = [sys.executable, str(server), str(RENDER)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def helm(*arguments: str) -> Rendered:
    """Run render.py with the arguments."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps(arguments), file=server.stdin, flush=True)
    return Rendered(*json.loads(server.stdout.readline()))


def text_of(*values: str) -> str:
    """Return the manifests with these value sets or files over the values of the chart."""
    done = helm(
        *(str(CI / f"{value}.yaml") if value in (*VALUE_SETS, *OVERLAYS) else value for value in values)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def objects(*values: str) -> tuple[Object, ...]:
    """Return the parsed manifests. The parser in C is ten times as fast."""
    return tuple(one for one in yaml.load_all(text_of(*values), yaml.CSafeLoader) if one)


def of_kind(kind: str, *values: str) -> dict[str, Object]:
    """Return the objects of one kind by their name."""
    return {one["metadata"]["name"]: one for one in objects(*values) if one["kind"] == kind}


def pods(*values: str) -> Iterator[tuple[str, Object]]:
    """Return every pod, also those of jobs and hooks, as `Kind/name` and its spec."""
    for one in objects(*values):
        name = f"{one['kind']}/{one['metadata']['name']}"
        if one["kind"] == "Pod":
            yield name, one["spec"]
        elif one["kind"] in ("Deployment", "StatefulSet", "Job", "DaemonSet", "ReplicaSet"):
            yield name, one["spec"]["template"]["spec"]
        elif one["kind"] == "CronJob":
            yield name, one["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def containers(pod: Object) -> list[Object]:
    """Return all containers of a pod, including the init containers."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def refusal(tmp_path: Path, values: Object, base: str = "minimal") -> str:
    """Return the message with which Helm refuses the values. Fail if it accepts them."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = helm(str(CI / f"{base}.yaml"), str(file))
    assert done.returncode == 1, "Helm accepts these values"
    assert "Traceback" not in done.stderr
    return done.stderr
