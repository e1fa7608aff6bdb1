"""Each alert fires for what it is for, and is silent for what comes near; Prometheus decides."""

import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from spawnmesh_attachment_blob.operations.garbage_metrics import GarbageMetrics
from spawnmesh_postgres.audit.metrics import AuditMetrics
from spawnmesh_transcript.metrics import VerificationMetrics

from tests.support.deploy.queries import ADDED, OF_OTHERS, labels_of
from tests.support.deploy.registry import series
from tests.support.deploy.rendering import CI, helm, of_kind

_PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    _PROMTOOL is None,
    reason="there is no promtool: install Debian's package prometheus (`apt-get install prometheus`)",
)


@cache
def cases() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("alert_cases.yaml").read_text())
    return found


def groups(*values: str) -> list[dict[str, Any]]:
    rules = of_kind("PrometheusRule", "production", *values)["spawnmesh"]
    found: list[dict[str, Any]] = rules["spec"]["groups"]
    return found


def group_of(alert: str, *values: str) -> dict[str, Any]:
    """Return the group of the alert, with this alert alone."""
    (group,) = (group for group in groups(*values) if alert in [rule.get("alert") for rule in group["rules"]])
    return {**group, "rules": [rule for rule in group["rules"] if rule.get("alert", alert) == alert]}


def alerts() -> set[str]:
    return {rule["alert"] for group in groups() for rule in group["rules"] if "alert" in rule}


def promtool(*arguments: str) -> str:
    """Run it and return its output. Its exit code must be 0."""
    assert _PROMTOOL is not None
    done = subprocess.run([_PROMTOOL, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_namespace(selector: str, namespace: str) -> str:
    name, _, labels = selector.partition("{")
    others = f", {labels}" if labels else "}"
    return f'{name}{{namespace="{namespace}"{others}'


def check(
    folder: Path, alert: str, series: dict[str, str], *values: str, namespace: str = "mesh", fires: bool
) -> None:
    """Have promtool evaluate the alert, and what is recorded for it, with the series."""
    case = cases()[alert]
    every = case.get("every", "1m")
    query = f'max by (alertname) (ALERTS{{alertname="{alert}", alertstate="firing"}})'
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if fires else []
    test = {
        "interval": every,
        "input_series": [
            {"series": in_namespace(selector, namespace), "values": str(samples)}
            for selector, samples in series.items()
        ],
        "promql_expr_test": [{"expr": query, "eval_time": case["at"], "exp_samples": expected}],
    }
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [group_of(alert, *values)]}))
    (folder / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": every, "tests": [test]})
    )
    promtool("test", "rules", str(folder / "test.yaml"))


def test_every_alert_has_its_cases() -> None:
    assert set(cases()) == alerts()
    assert all(set(case) - {"every"} == {"at", "firing", "silent"} for case in cases().values())
    assert all(case["firing"] and case["silent"] for case in cases().values())


@pytest.mark.parametrize("alert", sorted(cases()))
def test_cases_have_series_that_there_are(alert: str) -> None:
    for written in (*cases()[alert]["firing"], *cases()[alert]["silent"]):
        selector = promql.parse(written)
        assert selector.name in OF_OTHERS or selector.name in series()
        assert {matcher.name for matcher in selector.matchers.matchers} <= ADDED | labels_of(selector.name)


@pytest.mark.parametrize(
    ("make", "series_name", "label", "values"),
    [
        (
            lambda meter: AuditMetrics(meter, lambda: 0),
            "spawnmesh_audit_calls_total",
            "spawnmesh_audit_result",
            {"lost"},
        ),
        (
            GarbageMetrics,
            "spawnmesh_garbage_items_total",
            "spawnmesh_garbage_kind",
            {"missing_object", "damaged_object", "refused_deletion"},
        ),
        (
            VerificationMetrics,
            "spawnmesh_transcript_verified_transcripts_total",
            "spawnmesh_transcript_verification_outcome",
            {"mismatch"},
        ),
    ],
    ids=["audit", "garbage", "verification"],
)
def test_counter_begins_at_zero_where_an_alert_waits_for_the_first_event(
    make: Callable[[Meter], object], series_name: str, label: str, values: set[str]
) -> None:
    """Prometheus sees no increase in a series that begins with the event."""
    registry = CollectorRegistry()
    make(MeterProvider([PrometheusMetricReader(registry=registry)]).get_meter("test"))
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    begun = {one.labels[label]: one.value for one in samples if one.name == series_name}
    assert {value: begun.get(value) for value in values} == dict.fromkeys(values, 0)


@needs_promtool
def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups()}))
    assert "SUCCESS" in promtool("check", "rules", str(tmp_path / "rules.yaml"))


@needs_promtool
@pytest.mark.parametrize("alert", sorted(cases()))
def test_alert_fires(tmp_path: Path, alert: str) -> None:
    check(tmp_path, alert, cases()[alert]["firing"], fires=True)


@needs_promtool
@pytest.mark.parametrize("alert", sorted(cases()))
def test_alert_is_silent_for_what_comes_near(tmp_path: Path, alert: str) -> None:
    check(tmp_path, alert, cases()[alert]["silent"], fires=False)


@needs_promtool
@pytest.mark.parametrize("alert", sorted(set(cases()) - {"SpawnmeshComponentIsMissing"}))
def test_alert_is_silent_for_another_release(tmp_path: Path, alert: str) -> None:
    check(tmp_path, alert, cases()[alert]["firing"], namespace="other", fires=False)


def test_every_alert_names_the_address_of_its_page() -> None:
    for group in groups():
        for rule in group["rules"]:
            if "alert" in rule:
                page = rule["annotations"]["runbook"].removesuffix(".md")
                assert rule["annotations"]["runbook_url"] == f"https://docs.example.com/runbooks/{page}/"


def test_without_an_address_there_is_the_name_of_the_page_alone(tmp_path: Path) -> None:
    values = tmp_path / "no-address.yaml"
    values.write_text('telemetry: {metrics: {runbookUrl: ""}}')
    found = [
        rule["annotations"] for group in groups(str(values)) for rule in group["rules"] if "alert" in rule
    ]
    assert all("runbook" in annotations and "runbook_url" not in annotations for annotations in found)


@needs_promtool
def test_objective_of_the_operator_is_the_one_that_counts(tmp_path: Path) -> None:
    """Two failures of a hundred are within an objective of 99 %, and the cases above are not."""
    values = tmp_path / "objective.yaml"
    values.write_text("telemetry: {metrics: {objectives: {spawnsServed: 99}}}")
    alert = "SpawnmeshSpawnsMissObjective"
    check(tmp_path, alert, cases()[alert]["firing"], str(values), fires=False)


@pytest.mark.parametrize(
    ("values", "at"),
    [
        ("objectives: {spawnsServed: 100}", "/telemetry/metrics/objectives/spawnsServed"),
        ("objectives: {runsNotFailed: none}", "/telemetry/metrics/objectives/runsNotFailed"),
        ("runbookUrl: https://docs.example.com/runbooks", "/telemetry/metrics/runbookUrl"),
        ("certificateDays: {warning: 0}", "/telemetry/metrics/certificateDays/warning"),
    ],
    ids=["no failure allowed", "a word", "no place for the page", "no day"],
)
def test_value_without_a_meaning_is_refused(tmp_path: Path, values: str, at: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(f"telemetry: {{metrics: {{{values}}}}}")
    refused = helm(str(CI / "production.yaml"), str(file))
    assert refused.returncode == 1
    assert at.replace("/", ".").strip(".") in refused.stderr.replace("/", ".")
