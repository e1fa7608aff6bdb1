"""Every query of the dashboards and of the alerts, by a real Prometheus on the metrics of a real mesh."""

import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.settings import ProcessSettings

from deploy.dashboards.boards import BOARDS
from deploy.dashboards.parts import Panel, Query
from tests.support.deploy.registry import series
from tests.support.deploy.rendering import of_kind
from tests.support.mesh.prometheus import NO_PROMETHEUS, PROMETHEUS, Prometheus, open_prometheus
from tests.support.mesh.telemetry_work import TENANT_CLASS, do_everything
from tests.support.runtime.authority import Authority, Mounted

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason=NO_PROMETHEUS)

FROM_PROMETHEUS = {"up", "target_info"}
NAMESPACE = "mesh"
"""That of the alerts in the rendered chart."""


def panels() -> Iterator[tuple[str, Panel]]:
    for board in BOARDS:
        for row in board.rows:
            for panel in row.panels:
                yield f"{board.name}: {panel.title}", panel


def filled(query: Query) -> str:
    """Return the query as Grafana sends it, with all values of the variables chosen."""
    found = query.expression.replace("$__rate_interval", "20s").replace("$__range", "10m")
    found = found.replace("$namespace", NAMESPACE)
    for board in BOARDS:
        for variable in board.variables:
            found = found.replace(f'"${variable.name}"', '".*"')
    assert "$" not in found
    return found


def config_of(stack: Stack) -> dict[str, Any]:
    """Return the configuration that the mesh has written, faster and in the namespace of the alerts.

    Processes that another test has ended are left out.
    """
    assert stack.scraping is not None
    found: dict[str, Any] = json.loads(stack.scraping.config_file.read_text())
    found["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    [job] = found["scrape_configs"]
    running = {name for name, process in stack.processes.items() if process.returncode is None}
    job["static_configs"] = [one for one in job["static_configs"] if one["labels"]["pod"] in running]
    for group in job["static_configs"]:
        group["labels"]["namespace"] = NAMESPACE
    return found


@pytest.fixture(scope="module")
async def prometheus(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Prometheus]:
    """Do the work of a demo and much more, and yield the server that has watched it."""
    folder = tmp_path_factory.mktemp("prometheus")
    authority, mounted = Authority("ours"), Mounted(folder / "tls")
    mounted.put(authority.leaf("member", holds=timedelta(days=30)), authority)
    settings = ProcessSettings(metrics_listen="127.0.0.1:0", **mounted.settings)
    config = config_of(stack)
    rules = of_kind("PrometheusRule", "production")["spawnmesh"]["spec"]["groups"]
    # The processes of the mesh have no certificates; this one has.
    async with start_process("console", settings) as certified:
        labels = {"namespace": NAMESPACE, "component": "console", "pod": "console"}
        target = {"targets": [f"127.0.0.1:{certified.metrics.port}"], "labels": labels}
        config["scrape_configs"][0]["static_configs"].append(target)
        async with open_prometheus(folder, config, rules) as server:
            await server.until_read_again()
            await do_everything(stack, folder / "files", server.until)
            for _ in range(3):  # A rate needs two values.
                await server.until_read_again()
            yield server


async def test_every_query_of_every_panel_returns_data(prometheus: Prometheus) -> None:
    empty = [
        f"{where}: {query.legend}"
        for where, panel in panels()
        for query in panel.queries
        if not await prometheus.values(filled(query))
    ]
    assert empty == []


@pytest.mark.parametrize(
    ("title", "least"),
    [
        ("Approvals and budgets that wait", 1),
        ("Oldest run that waits for a runner", 1),
        ("Oldest approval that waits", 1),
        ("Watchers of sessions", 1),
        ("Slots of runners", 1),
        ("Live runs", 1),
        ("Tokens in the shown time", 1),
        ("Tokens, by agent", 0.001),
        ("Calls of plugins, by decision", 0.001),
        ("Runs that ended for a reason of their tenant", 0),
    ],
)
async def test_panel_shows_what_happened(prometheus: Prometheus, title: str, least: float) -> None:
    [queries] = {tuple(panel.queries) for where, panel in panels() if where.endswith(f": {title}")}
    values = [value for query in queries for value in await prometheus.values(filled(query))]
    assert max(values) >= least


@pytest.mark.parametrize(
    "expression",
    [
        'spawnmesh_model_router_failovers_total{spawnmesh_failover_reason="RATE_LIMIT"} > 0',
        f'spawnmesh_model_router_tokens_total{{spawnmesh_tenant_class="{TENANT_CLASS}"}} > 0',
        'spawnmesh_model_router_tokens_total{spawnmesh_tenant_class="none"} > 0',
        'spawnmesh_model_router_agent_tokens_total{gen_ai_agent_name="analyst"} > 0',
        'spawnmesh_calls_limited_total{spawnmesh_rpc_class="READ"} > 0',
        'spawnmesh_session_runs_delayed_total{error_type="DEPENDENCY_UNAVAILABLE"} > 0',
        'spawnmesh_runner_slots{spawnmesh_runner_slot_state="free", component="runner"} > 0',
        'spawnmesh_hook_webhook_duration_seconds_count{spawnmesh_hook_result="no_answer"} > 0',
    ],
)
async def test_work_is_measured(prometheus: Prometheus, expression: str) -> None:
    assert await prometheus.query(expression)


async def test_latencies_have_traces_beside_them(prometheus: Prometheus) -> None:
    without = [
        f"{where}: {query.legend}"
        for where, panel in panels()
        for query in panel.queries
        if query.exemplars and not await prometheus.has_exemplars(filled(query))
    ]
    assert without == []


async def test_choices_of_the_reader_have_values(prometheus: Prometheus) -> None:
    for board in BOARDS:
        for variable in board.variables:
            found = await prometheus.query(f"count by ({variable.of_label}) ({variable.series})")
            assert found, variable.name


async def test_rules_are_evaluated_and_no_part_of_the_mesh_is_missed(prometheus: Prometheus) -> None:
    rules = await prometheus.rules()
    assert len(rules) > 30
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    states = {rule["name"]: rule["state"] for rule in rules if rule["type"] == "alerting"}
    quiet = {"SpawnmeshTargetDown", "SpawnmeshComponentIsMissing", "SpawnmeshDependencyIsDown"}
    assert {states[name] for name in quiet} == {"inactive"}


async def test_every_series_of_the_mesh_is_registered_and_within_its_bounds(prometheus: Prometheus) -> None:
    found = await prometheus.query('{job="metrics"}')
    added = {"__name__", "namespace", "job", "component", "pod", "instance", "le"}
    values: dict[tuple[str, str, str], set[str]] = {}
    for one in found:
        labels = one["metric"]
        name = labels["__name__"]
        if name in FROM_PROMETHEUS or name.startswith("scrape_"):
            continue
        assert name in series(), name
        metric = series()[name]
        assert labels["component"] in metric.components | {"console"}, labels
        own = {label: value for label, value in labels.items() if label not in added}
        assert own.keys() <= metric.labels.keys(), labels
        for label, value in own.items():
            exact = metric.labels[label].exact
            assert exact is None or value in exact, labels
            values.setdefault((name, labels["pod"], label), set()).add(value)
    for (name, _, label), several in values.items():
        assert len(several) <= series()[name].labels[label].count
    assert len(found) > 1000
