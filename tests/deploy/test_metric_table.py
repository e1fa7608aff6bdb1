"""The reference lists every metric as the registry has it, and the collector of the guide is valid."""

import re

import yaml

from tests.support.deploy.metric_table import PAGE, updated
from tests.support.deploy.rendering import ROOT

GUIDE = ROOT / "docs" / "howto" / "telemetry.md"


def test_table_of_the_metrics_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == updated(page), "run: python -m tests.support.deploy.metric_table"
    assert page.count("| `") > 40
    assert "| `db_client_connection_count` |" in page
    assert "| `rpc_server_call_duration_seconds` |" in page


def test_every_exporter_and_processor_of_the_collector_is_defined() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    [collector] = [one for one in map(yaml.safe_load, examples) if "receivers" in one]
    for pipeline in collector["service"]["pipelines"].values():
        for part, names in pipeline.items():
            assert set(names) <= collector[part].keys()
