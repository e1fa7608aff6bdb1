"""The page on telemetry lists every metric, as the sources have it, and its examples are valid."""

import re

import yaml

from tests.support.deploy.instruments import instruments
from tests.support.deploy.metric_table import PAGE, updated


def test_table_of_the_metrics_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == updated(page), "run: python -m tests.support.deploy.metric_table"
    assert page.count("| `") > 40


def test_every_metric_has_a_unit_or_is_a_state_and_a_description() -> None:
    assert [one.name for one in instruments() if not one.description.endswith(".")] == []
    assert {one.name for one in instruments() if not one.unit} == {
        "spawnmesh.dependency.up",
        "spawnmesh.runner.mcp.sandbox",
    }


def test_every_exporter_and_processor_of_the_collector_is_defined() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    collector = yaml.safe_load(example)
    for pipeline in collector["service"]["pipelines"].values():
        for part, names in pipeline.items():
            assert set(names) <= collector[part].keys()
