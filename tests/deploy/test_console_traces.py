"""The backend of traces that the chart gives to the console."""

from pathlib import Path

import pytest

from tests.support.deploy.console_values import ON, console_with, over, pod_of, secrets_of, told
from tests.support.deploy.rendering import Object, refusal


def test_headers_of_the_secret_are_a_file_that_the_process_reads() -> None:
    (container,) = pod_of("production", ON)["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    said = told("production", ON)
    assert said["TRACES_URL"] == "http://tempo.observability:3200/api/v2/traces/{trace_id}"
    assert said["TRACES_HEADERS_FILE"] == f"{mounts['console']}/traces-headers"
    assert secrets_of("production", ON)["tempo-reader"] == {"headers": "traces-headers"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"traces": {"url": "http://tempo:3200/api/v2/traces/"}}, "/console/traces/url"),
        ({"traces": {"url": "http://{trace_id}:3200/"}}, "/console/traces/url"),
        ({"traces": {"url": "http://user:word@tempo:3200/{trace_id}"}}, "/console/traces/url"),
        ({"traces": {"url": "tempo:3200/{trace_id}"}}, "/console/traces/url"),
        ({"traces": {"headers": "Authorization: x"}}, "headers"),
        ({"traces": {"headersSecretRef": {"name": "x"}, "key": "y"}}, "key"),
        ({"settings": {"TRACES_URL": "http://x/{trace_id}"}}, "TRACES_URL"),
        ({"settings": {"TRACES_HEADERS_FILE": "/x"}}, "TRACES_HEADERS_FILE"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value)[:50],
)  # fmt: skip
def test_backends_that_cannot_work_are_refused(tmp_path: Path, changes: Object, named: str) -> None:
    assert named in refusal(tmp_path, console_with(**changes))


def test_traces_that_no_policy_leads_to_are_refused(tmp_path: Path) -> None:
    values = console_with(traces={"url": "https://tempo.example.com/api/v2/traces/{trace_id}"})
    said = refusal(tmp_path, values)
    assert (
        "console.traces.url is on port 443, and networkPolicy.traces.ports lets through [3200] alone" in said
    )


@pytest.mark.parametrize(
    "url", ["http://jaeger-query:16686/api/v3/traces/{trace_id}", "http://x:3200?id={trace_id}&a=b"]
)
def test_address_of_traces_reaches_the_process_as_it_is(tmp_path: Path, url: str) -> None:
    open_ports = {"traces": {"ports": [3200, 16686]}}
    plain = over(
        tmp_path, console={"traces": {"url": url, "headersSecretRef": {"name": ""}}}, networkPolicy=open_ports
    )
    said = told("minimal", ON, plain)
    assert said["TRACES_URL"] == url
    assert "TRACES_HEADERS_FILE" not in said
    assert "tempo-reader" not in secrets_of("minimal", ON, plain)
