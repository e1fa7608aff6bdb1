"""Alert rules and dashboards: of metrics that the services have, with a page for whoever is woken."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from tests.deploy.rendering import CI, ROOT, helm, of_kind

# What Prometheus and the ServiceMonitor add to every series.
ADDED = {"namespace", "job", "component", "pod", "instance", "le"}
SYNCHRONOUS = ("counter", "up_down_counter", "histogram", "gauge")


def rules() -> list[dict[str, Any]]:
    (group,) = of_kind("PrometheusRule", "production")["spawnmesh"]["spec"]["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def dashboards() -> dict[str, Any]:
    return {name: json.loads(text) for name, text in of_kind("ConfigMap", "production")["dashboards"]["data"].items()}


def queries() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for name, board in dashboards().items():
        for panel in board["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "5m")
                yield f"{name}: {panel['title']}", expression


def selectors(expression: Any) -> Iterator[Any]:
    """Every selector of series in the expression."""
    if isinstance(expression, promql.VectorSelector):
        yield expression
        return
    for part in ("lhs", "rhs", "expr", "vector_selector", "param"):
        inner = getattr(expression, part, None)
        if inner is not None and not isinstance(inner, str):
            yield from selectors(inner)
    for argument in getattr(expression, "args", None) or ():
        yield from selectors(argument)


@cache
def exported_names() -> frozenset[str]:
    """What Prometheus is given for each instrument that the sources make, as the exporter itself names them."""
    registry = CollectorRegistry()
    meter = MeterProvider([PrometheusMetricReader(registry=registry)]).get_meter("test")
    made = 0
    for folder in ("services", "libs"):
        for path in (ROOT / folder).rglob("*.py"):
            for kind, name, unit in instruments(ast.parse(path.read_text())):
                instrument = getattr(meter, f"create_{kind}")(name, unit=unit)
                getattr(instrument, {"histogram": "record", "gauge": "set"}.get(kind, "add"))(1)
                made += 1
    assert made >= 10
    return frozenset(sample.name for metric in registry.collect() for sample in metric.samples)


@cache
def attribute_names() -> frozenset[str]:
    """Dotted names in the sources, as the exporter writes those of attributes."""
    texts = (path.read_text() for folder in ("services", "libs") for path in (ROOT / folder).rglob("*.py"))
    dotted = {name for text in texts for name in re.findall(r'"([a-z]+(?:\.[a-z_]+)+)"', text)}
    return frozenset(name.replace(".", "_") for name in dotted)


def instruments(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Kind, name and unit of each that the module makes."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
            continue
        kind, name = call.func.attr.removeprefix("create_"), call.args[0]
        if kind in SYNCHRONOUS and isinstance(name, ast.Constant):
            units = [one.value for one in call.keywords if one.arg == "unit"]
            unit = units[0].value if units and isinstance(units[0], ast.Constant) else ""
            yield kind, str(name.value), str(unit)


@pytest.mark.parametrize(("where", "query"), [pytest.param(*one, id=one[0]) for one in queries()])
def test_query_asks_for_series_that_there_are(where: str, query: str) -> None:
    asked = [selector.name for selector in selectors(promql.parse(query))]
    assert asked
    assert [name for name in asked if name != "up" and name not in exported_names()] == []


@pytest.mark.parametrize(("where", "query"), [pytest.param(*one, id=one[0]) for one in queries()])
def test_query_tells_series_apart_by_labels_that_they_have(where: str, query: str) -> None:
    named = {matcher.name for selector in selectors(promql.parse(query)) for matcher in selector.matchers.matchers}
    grouped = {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", query) for label in labels.split(",")}
    assert (named | grouped) - ADDED - attribute_names() == set()


@pytest.mark.parametrize(("where", "query"), [pytest.param(*one, id=one[0]) for one in queries()])
def test_query_looks_at_its_own_namespace_alone(where: str, query: str) -> None:
    for selector in selectors(promql.parse(query)):
        matchers = {one.name: one.value for one in selector.matchers.matchers}
        assert matchers["namespace"] in ("mesh", "$namespace")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_alert_has_a_page_and_says_how_bad_it_is(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    page = ROOT / "docs/runbooks" / rule["annotations"]["runbook"]
    assert page.read_text().startswith("# ")


def test_rules_without_a_monitor_are_refused(tmp_path: Path) -> None:
    (tmp_path / "alone.yaml").write_text("telemetry: {metrics: {alerts: true}}")
    done = helm(str(CI / "minimal.yaml"), str(tmp_path / "alone.yaml"))
    assert done.returncode == 1
    assert "telemetry.metrics.alerts needs telemetry.metrics.serviceMonitor" in done.stderr


def test_panels_do_not_lie_over_each_other() -> None:
    for board in dashboards().values():
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            assert not taken & cells
            assert at["x"] + at["w"] <= 24
            taken |= cells
