"""Pods are made at once and removed slowly; runners by the slots that runs ask for."""

import json
import math
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from spawnmesh_runner.settings import RunnerSettings

from tests.support.deploy.queries import labels_of, selectors
from tests.support.deploy.registry import series
from tests.support.deploy.rendering import ROOT, Object, of_kind, refusal

KEDA = ("production", "keda")
_PROMTOOL = shutil.which("promtool")


def over(tmp_path: Path, values: Object) -> str:
    file = tmp_path / "over.yaml"
    file.write_text(json.dumps(values))
    return str(file)


def runner(**autoscaling: Any) -> Object:
    return {"services": {"runner": {"autoscaling": {"enabled": True, **autoscaling}}}}


def trigger(*values: str) -> dict[str, str]:
    (found,) = of_kind("ScaledObject", *values)["runner"]["spec"]["triggers"]
    assert (found["type"], found["metricType"]) == ("prometheus", "AverageValue")
    metadata: dict[str, str] = found["metadata"]
    return metadata


def pods_removed_in_a_minute(behavior: Object, pods: int) -> int:
    """Return the most pods that are removed in a minute, as the autoscaler computes it."""
    down = behavior["scaleDown"]
    assert down["selectPolicy"] == "Max"
    assert {one["periodSeconds"] for one in down["policies"]} == {60}
    return max(
        one["value"] if one["type"] == "Pods" else math.ceil(pods * one["value"] / 100)
        for one in down["policies"]
    )


def behaviors() -> dict[str, Object]:
    scalers = of_kind("HorizontalPodAutoscaler", "production", "ingress")
    found = {name: one["spec"]["behavior"] for name, one in scalers.items()}
    scaled = of_kind("ScaledObject", *KEDA)["runner"]["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    return {**found, "runner by KEDA": scaled["behavior"]}


def test_pods_are_removed_slowly_and_made_at_once() -> None:
    found = behaviors()
    assert {"session", "runner", "gateway", "runner by KEDA"} <= set(found)
    for name, behavior in found.items():
        assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0, name
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 300, name
        assert [pods_removed_in_a_minute(behavior, pods) for pods in (2, 10, 40)] == [1, 1, 4], name


def test_keda_sets_the_number_of_runners_alone() -> None:
    assert "runner" not in of_kind("HorizontalPodAutoscaler", *KEDA), "two would set the number in turn"
    assert "replicas" not in of_kind("Deployment", *KEDA)["runner"]["spec"]
    spec = of_kind("ScaledObject", *KEDA)["runner"]["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "runner"}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 40)


def test_runners_stay_while_prometheus_cannot_be_asked() -> None:
    spec = of_kind("ScaledObject", *KEDA)["runner"]["spec"]
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert spec["fallback"]["replicas"] == spec["minReplicaCount"]
    assert trigger(*KEDA)["ignoreNullValues"] == "false"


def test_query_names_metrics_and_labels_that_there_are() -> None:
    """Its states are those that the sources set."""
    asked = {
        selector.name: {one.name: one.value for one in selector.matchers.matchers}
        for selector in selectors(promql.parse(trigger(*KEDA)["query"]))
    }
    assert set(asked) == {"spawnmesh_runner_slots", "spawnmesh_session_runs"}
    for name, labels in asked.items():
        assert labels.pop("namespace") == "mesh"
        assert set(labels) <= labels_of(name), name
        for label, value in labels.items():
            known = series()[name].labels[label].exact
            assert known is None or value in known
    assert "as waiting," in (ROOT / "services/session/spawnmesh_session/store/run_queue.sql").read_text()


def test_query_of_the_page_is_that_of_the_chart() -> None:
    page = (ROOT / "docs/howto/install-on-kubernetes.md").read_text()
    assert f"```promql\n{trigger(*KEDA)['query']}\n```" in page


@pytest.mark.skipif(_PROMTOOL is None, reason="there is no promtool: install Debian's package prometheus")
@pytest.mark.parametrize(
    ("used", "waiting", "demand"),
    [((8, 3), 5, 16), ((0, 0), 0, 0), ((), 4, 4), ((8, 8), None, None)],
    ids=["used and waiting", "idle", "no runner yet", "nothing is known of the queue"],
)
def test_demand_is_the_slots_that_are_used_and_the_runs_that_wait(
    tmp_path: Path, used: tuple[int, ...], waiting: int | None, demand: int | None
) -> None:
    """Workers of the session service measure the queue twice, and other namespaces have their own."""
    runs = 'spawnmesh_session_runs{{namespace="{0}",spawnmesh_session_run_state="{1}",pod="{2}"}}'
    slots = 'spawnmesh_runner_slots{{namespace="{0}",spawnmesh_runner_slot_state="{1}",pod="{2}"}}'
    given = {slots.format("mesh", "used", pod): count for pod, count in enumerate(used)}
    given |= {slots.format("mesh", "free", pod): 8 - count for pod, count in enumerate(used)}
    given |= {slots.format("other", "used", 0): 8, runs.format("other", "waiting", 0): 90}
    if waiting is not None:
        given |= {runs.format("mesh", "waiting", pod): waiting for pod in range(2)}
    given |= {runs.format("mesh", "waiting_approval", 0): 50, runs.format("mesh", "held", 0): 11}
    test = {
        "input_series": [{"series": name, "values": str(value)} for name, value in given.items()],
        "promql_expr_test": [
            {
                "expr": trigger(*KEDA)["query"],
                "eval_time": "0m",
                "exp_samples": [] if demand is None else [{"labels": "{}", "value": demand}],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    done = subprocess.run([str(_PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("settings", "free_percent", "slots"),
    [
        ({}, 20, "6.4"),
        ({"MAX_RUNS": 20}, 25, "15"),
        ({}, 0, "7"),
        ({"MAX_RUNS": 3}, 0, "3"),
        ({"MAX_RUNS": 10, "RESERVED_RUNS": 4}, 10, "6"),
        ({"MAX_RUNS": 1}, 50, "0.5"),
    ],
)
def test_one_more_runner_comes_before_no_slot_is_left(
    tmp_path: Path, settings: Object, free_percent: int, slots: str
) -> None:
    """A single tenant cannot use the slots that are reserved, so its runs must not wait for them."""
    values: Object = runner(by="keda", freeSlotPercent=free_percent)
    values["services"]["runner"]["settings"] = settings
    asked = trigger(*KEDA, over(tmp_path, values))["threshold"]
    assert asked == slots
    read = RunnerSettings.model_validate(
        {
            **{f"{name}_target": "a:1" for name in ("session", "transcript", "model_router", "hook")},
            "attachment_blob_target": "a:1",
            "workspace_root": tmp_path,
            **{name.lower(): value for name, value in settings.items()},
        }
    )
    usable = read.max_runs - read.reserved_run_count
    assert Fraction(asked) <= usable
    for busy in range(200):  # Where all runners that were asked for are full for one tenant, another one is.
        pods = max(1, math.ceil(busy / Fraction(asked)))
        assert pods * usable >= busy


def test_metric_of_an_adapter_takes_the_place_of_keda(tmp_path: Path) -> None:
    file = over(
        tmp_path, runner(by="external", externalMetric={"name": "runner_slots", "labels": {"mesh": "a"}})
    )
    (metric,) = of_kind("HorizontalPodAutoscaler", "production", file)["runner"]["spec"]["metrics"]
    assert metric == {
        "type": "External",
        "external": {
            "metric": {"name": "runner_slots", "selector": {"matchLabels": {"mesh": "a"}}},
            "target": {"type": "AverageValue", "averageValue": "6.4"},
        },
    }


@pytest.mark.parametrize(
    ("base", "values", "named"),
    [
        ("minimal", runner(by="keda"), "services.runner.autoscaling.by is keda, and telemetry.metrics.enabled is false"),
        ("production", runner(by="keda"), "services.runner.autoscaling.keda.serverAddress is empty"),
        ("production", runner(by="external"), "services.runner.autoscaling.externalMetric.name is empty"),
        ("production", runner(by="queue"), "/services/runner/autoscaling/by"),
        ("production", runner(freeSlotPercent=100), "/services/runner/autoscaling/freeSlotPercent"),
        ("production", runner(minReplicas=50), "services.runner.autoscaling.minReplicas is 50, above maxReplicas"),
        ("production", runner(by="keda", keda={"serverAddress": "prometheus:9090"}), "/keda/serverAddress"),
        ("minimal", {"services": {"hook": {"autoscaling": {"by": "keda"}}}}, "'by'"),
        ("minimal", {"services": {"hook": {"autoscaling": {"stabilizationSeconds": 4000}}}}, "/services/hook/autoscaling/stabilizationSeconds"),
    ],
)  # fmt: skip
def test_what_could_not_scale_is_refused(tmp_path: Path, base: str, values: Object, named: str) -> None:
    assert named in refusal(tmp_path, values, base=base)
