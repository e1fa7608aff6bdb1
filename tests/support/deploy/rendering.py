"""The chart rendered by Helm, and its objects to look at."""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
RENDER = ROOT / "deploy" / "helm" / "render.py"
CI = ROOT / "deploy" / "helm" / "spawnmesh" / "ci"
VALUE_SETS = ("minimal", "trial", "production")

Object = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Helm's part in a process of its own: its library brings a runtime with threads and signals of its own."""
    return subprocess.run(
        [sys.executable, str(RENDER), *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def text_of(*values: str) -> str:
    """The manifests with these value sets or files over the chart's own."""
    done = helm(*(str(CI / f"{value}.yaml") if value in VALUE_SETS else value for value in values))
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def objects(*values: str) -> tuple[Object, ...]:
    """The same, parsed: by the parser in C, which gives the same ten times as fast."""
    return tuple(one for one in yaml.load_all(text_of(*values), yaml.CSafeLoader) if one)


def of_kind(kind: str, *values: str) -> dict[str, Object]:
    """The objects of one kind by their name."""
    return {one["metadata"]["name"]: one for one in objects(*values) if one["kind"] == kind}


def pods(*values: str) -> Iterator[tuple[str, Object]]:
    """Every pod there will be, as `Kind/name` and its spec: those of jobs and hooks too."""
    for one in objects(*values):
        name = f"{one['kind']}/{one['metadata']['name']}"
        if one["kind"] == "Pod":
            yield name, one["spec"]
        elif one["kind"] in ("Deployment", "StatefulSet", "Job", "DaemonSet", "ReplicaSet"):
            yield name, one["spec"]["template"]["spec"]
        elif one["kind"] == "CronJob":
            yield name, one["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def containers(pod: Object) -> list[Object]:
    """All of a pod, those that run before the others included."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def refusal(tmp_path: Path, values: Object, base: str = "minimal") -> str:
    """What Helm says against the values; fails where it has nothing against them."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = helm(str(CI / f"{base}.yaml"), str(file))
    assert done.returncode == 1, "these values are taken"
    assert "Traceback" not in done.stderr
    return done.stderr
