"""Alert rules and dashboards use metrics that the services have, and each alert has a runbook."""

import json
import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_runtime.methods import policy_of

from tests.support.deploy.queries import ADDED, CLAIM, OF_OTHERS, groupings, labels_of, selectors
from tests.support.deploy.registry import series
from tests.support.deploy.rendering import CI, ROOT, helm, of_kind


def rules() -> list[dict[str, Any]]:
    """Return the rules that alert."""
    groups = of_kind("PrometheusRule", "production")["spawnmesh"]["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def records() -> dict[str, str]:
    """Return the expressions of the rules that record a series, by its name."""
    groups = of_kind("PrometheusRule", "production")["spawnmesh"]["spec"]["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"] if "record" in rule}


def dashboards() -> dict[str, Any]:
    return {
        name: json.loads(text)
        for name, text in of_kind("ConfigMap", "production")["dashboards"]["data"].items()
    }


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels that have queries."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    yield from records().items()
    for name, board in dashboards().items():
        for panel in panels(board):
            for target in panel["targets"]:
                expression = target["expr"].replace("$__rate_interval", "5m").replace("$__range", "3h")
                yield f"{name}: {panel['title']} {target['refId']}", expression


def claims() -> set[str]:
    """Return the names of the claims of the first pods of what the chart brings."""
    return {
        f"{template['metadata']['name']}-{name}-0"
        for name, stateful in of_kind("StatefulSet", "trial").items()
        for template in stateful["spec"]["volumeClaimTemplates"]
    }


def values_of(name: str, label: str) -> Set[str] | None:
    """Return all values that the label can have, or None if they are not known in advance."""
    if label == "component":
        return set(of_kind("Deployment", "production"))
    if label == CLAIM:
        return claims()
    if name in OF_OTHERS or name in records():
        return None
    values = series()[name].labels.get(label)
    return values.exact if values is not None else None


@pytest.mark.parametrize(("where", "query"), [pytest.param(*one, id=one[0]) for one in queries()])
def test_query_asks_for_series_that_there_are(where: str, query: str) -> None:
    asked = [selector.name for selector in selectors(promql.parse(query))]
    assert asked
    assert [name for name in asked if name not in {*OF_OTHERS, *records(), *series()}] == []


@pytest.mark.parametrize(("where", "query"), [pytest.param(*one, id=one[0]) for one in queries()])
def test_query_tells_series_apart_by_labels_that_they_have(where: str, query: str) -> None:
    expression = promql.parse(query)
    for selector in selectors(expression):
        assert {matcher.name for matcher in selector.matchers.matchers} <= ADDED | labels_of(selector.name)
    for labels, asked in groupings(expression):
        assert labels <= ADDED.union(*(labels_of(name) for name in asked))


@pytest.mark.parametrize(("where", "query"), [pytest.param(*one, id=one[0]) for one in queries()])
def test_query_compares_labels_with_values_that_they_can_have(where: str, query: str) -> None:
    for selector in selectors(promql.parse(query)):
        for matcher in selector.matchers.matchers:
            # A variable of a dashboard stands for any of the values.
            known = None if matcher.value.startswith("$") else values_of(selector.name, matcher.name)
            if known is not None:
                is_exact = matcher.op == promql.MatchOp.Equal
                compared = {matcher.value} if is_exact else set(re.findall(r"\w[\w-]*", matcher.value))
                # A regular expression may name an RPC without its service.
                names = {value.rpartition("/")[2] for value in known}
                assert compared <= known | names | {""}, matcher.name


def test_values_are_known_of_what_alerts_compare() -> None:
    compared = {
        (selector.name, matcher.name)
        for rule in rules()
        for selector in selectors(promql.parse(rule["expr"]))
        for matcher in selector.matchers.matchers
        if matcher.name not in ("namespace", "job")
    }
    assert len(compared) >= 6
    assert [pair for pair in compared if values_of(*pair) is None] == []


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


def test_calls_that_wait_on_purpose_are_not_taken_for_slow() -> None:
    """A stream of events, and a call that waits, may last until the deadline of the caller."""
    (rule,) = [rule for rule in rules() if rule["alert"] == "SpawnmeshCallsAreTooSlow"]
    (left_out,) = re.findall(r'rpc_method!~"(.*?)"', rule["expr"])
    (panel,) = [
        panel for panel in panels(dashboards()["spawnmesh-overview.json"]) if panel["title"] == "Slowest RPCs"
    ]
    assert f'rpc_method!~"{left_out}"' in panel["targets"][0]["expr"]
    methods = {
        f"{service.full_name}/{method.name}": method
        for service in mesh_services()
        for method in service.methods
    }
    endless = {method.name for method in methods.values() if policy_of(method).ends_with_token}
    assert endless == {
        "ClaimRuns",
        "FollowEntries",
        "WatchActivities",
        "WatchCallLimits",
        "WatchRevokedTokens",
        "WatchRunChanges",
        "WatchSession",
        "WatchTranscript",
    }
    assert {method.name for name, method in methods.items() if re.fullmatch(left_out, name)} >= endless
    assert not re.fullmatch(left_out, "spawnmesh.session.v1.SessionService/GetSession")
    (failing,) = [rule for rule in rules() if rule["alert"] == "SpawnmeshCallsFail"]
    assert "DEADLINE_EXCEEDED" not in failing["expr"]


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


def test_every_workload_is_missed_when_there_is_nothing_of_it() -> None:
    (rule,) = [rule for rule in rules() if rule["alert"] == "SpawnmeshComponentIsMissing"]
    missed = re.findall(
        r'absent\(up\{namespace="mesh", job="metrics", component="([\w-]+)"\}\)', rule["expr"]
    )
    assert sorted(missed) == sorted(of_kind("Deployment", "production"))
