"""Each process of a mesh has a port for its metrics, and Prometheus a file with all of them."""

import json
import socket
from pathlib import Path

import pytest
from spawnmesh_devstack.failures import StackError
from spawnmesh_devstack.members import Member, Readiness
from spawnmesh_devstack.ports import LOOPBACK
from spawnmesh_devstack.scraping import Scraping, ports_from


def member(name: str) -> Member:
    return Member(name, (), {}, Readiness.STARTED)


def test_process_gets_a_port_and_keeps_it_and_is_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "prometheus.yaml"
    scraping = Scraping(file, iter((9001, 9002, 9003)))
    assert scraping.variables(member("session-2")) == {"SESSION_METRICS_LISTEN": "127.0.0.1:9001"}
    assert scraping.variables(member("attachment-blob-worker")) == {
        "ATTACHMENT_BLOB_METRICS_LISTEN": "127.0.0.1:9002"
    }
    assert scraping.variables(member("session-2")) == {"SESSION_METRICS_LISTEN": "127.0.0.1:9001"}
    assert scraping.variables(member("otlp-sink")) == {}
    [job] = json.loads(file.read_text())["scrape_configs"]
    assert job["job_name"] == "metrics"
    assert [(one["targets"], one["labels"]) for one in job["static_configs"]] == [
        (["127.0.0.1:9001"], {"namespace": "spawnmesh", "component": "session", "pod": "session-2"}),
        (
            ["127.0.0.1:9002"],
            {
                "namespace": "spawnmesh",
                "component": "attachment-blob-worker",
                "pod": "attachment-blob-worker",
            },
        ),
    ]


def test_port_in_use_is_refused() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=str(port)):
            next(ports_from(port))
