"""MCP servers of runners: the runner reads the servers that the chart accepts, at the rendered
path, and may send to their addresses.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_runner.clients.mcp.config import McpServer, load_mcp_config
from spawnmesh_runner.settings import RunnerSettings

from tests.support.deploy.policies import ports_of
from tests.support.deploy.rendering import ROOT, Object, of_kind, refusal

SCHEMA: dict[str, Any] = json.loads((ROOT / "deploy/helm/spawnmesh/values.schema.json").read_text())


def with_mcp(tmp_path: Path, mcp: dict[str, Any]) -> str:
    file = tmp_path / "mcp.yaml"
    file.write_text(json.dumps({"runner": {"mcp": mcp}}))
    return str(file)


def runner(*values: str) -> tuple[Object, dict[str, str], dict[str, str]]:
    """Return the pod of the runner, the variables of its process, and its mounted paths by volume."""
    pod = of_kind("Deployment", *values)["runner"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    told = {one["name"].removeprefix("RUNNER_"): one.get("value", "") for one in container["env"]}
    return pod, told, {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}


def reaches_out(*values: str) -> bool:
    rules = of_kind("NetworkPolicy", *values)["runner"]["spec"]["egress"]
    return any(443 in ports_of(rule) for rule in rules)


def test_servers_that_are_taken_are_what_the_runner_reads() -> None:
    taken = SCHEMA["$defs"]["mcpServer"]
    assert taken["additionalProperties"] is False, "a key that is pasted into it would stand in a ConfigMap"
    assert set(taken["properties"]) == set(McpServer.model_fields)
    assert taken["required"] == [
        name for name, field in McpServer.model_fields.items() if field.is_required()
    ]


def test_servers_and_their_secrets_are_where_the_runner_looks(tmp_path: Path) -> None:
    _, told, mounts = runner("production")
    assert told["MCP_CONFIG_FILE"] == f"{mounts['runner-mcp']}/mcp.json"
    file = tmp_path / "mcp.json"
    file.write_text(of_kind("ConfigMap", "production")["runner-mcp"]["data"]["mcp.json"])
    servers = load_mcp_config(file).servers
    assert servers["tracker"].bearer_token == f"file:{mounts['mcp']}/tracker"
    assert servers["tracker"].tenants == ("acme",)
    assert servers["files"].trust_annotations


def test_runners_without_servers_have_no_trace_of_them_and_reach_nobody(tmp_path: Path) -> None:
    values = with_mcp(tmp_path, {})
    _, told, mounts = runner("minimal", values)
    assert "MCP_CONFIG_FILE" not in told
    assert not {"runner-mcp", "mcp"} & set(mounts)
    assert "runner-mcp" not in of_kind("ConfigMap", "minimal", values)
    assert not reaches_out("minimal", values)


@pytest.mark.parametrize(
    ("mcp", "reaches"),
    [
        ({"servers": {"a": {"command": "a", "tenants": ["*"]}}}, False),
        ({"servers": {"b": {"url": "https://b.example.com", "tenants": ["*"]}}}, True),
        ({"existingSecret": "mine"}, True),
    ],
)
def test_runners_reach_addresses_where_servers_may_have_some(
    tmp_path: Path, mcp: dict[str, Any], reaches: bool
) -> None:
    assert reaches_out("minimal", with_mcp(tmp_path, mcp)) is reaches


def test_a_whole_file_comes_from_a_secret(tmp_path: Path) -> None:
    pod, told, mounts = runner("minimal", with_mcp(tmp_path, {"existingSecret": "mine"}))
    assert told["MCP_CONFIG_FILE"] == f"{mounts['runner-mcp']}/mcp.json"
    (volume,) = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "runner-mcp"]
    assert (volume["secretName"], volume["items"]) == ("mine", [{"key": "mcp.json", "path": "mcp.json"}])


def test_runners_are_replaced_when_their_servers_change(tmp_path: Path) -> None:
    sums = []
    for command in ("a", "b"):
        values = tmp_path / command
        values.mkdir()
        of_pods = of_kind(
            "Deployment",
            "minimal",
            with_mcp(values, {"servers": {"x": {"command": command, "tenants": ["*"]}}}),
        )
        sums.append(of_pods["runner"]["spec"]["template"]["metadata"]["annotations"]["checksum/runner-mcp"])
    assert sums[0] != sums[1]


def test_pod_of_the_runner_is_opened_for_sandboxes_by_name_alone(tmp_path: Path) -> None:
    usual, told, _ = runner("minimal")
    assert "hostUsers" not in usual
    assert "UNSANDBOXED_STDIO_SERVERS" not in told
    opened, told, _ = runner("minimal", with_mcp(tmp_path, {"userNamespaces": True}))
    assert opened["hostUsers"] is False
    security = opened["containers"][0]["securityContext"]
    assert security.items() >= usual["containers"][0]["securityContext"].items(), "nothing else is given up"
    assert security["procMount"] == "Unmasked"
    assert security["seccompProfile"] == security["appArmorProfile"] == {"type": "Unconfined"}
    assert "UNSANDBOXED_STDIO_SERVERS" not in told


def test_runner_does_without_a_sandbox_by_name_alone(tmp_path: Path) -> None:
    pod, told, _ = runner("minimal", with_mcp(tmp_path, {"unsandboxedStdioServers": True}))
    assert told["UNSANDBOXED_STDIO_SERVERS"] == "true"
    assert "hostUsers" not in pod


def test_workspaces_at_their_bound_fit_into_the_volume_of_a_pod() -> None:
    pod, _, _ = runner("minimal")
    (volume,) = [one["emptyDir"]["sizeLimit"] for one in pod["volumes"] if one["name"] == "workspaces"]
    fields = RunnerSettings.model_fields
    needed = fields["max_runs"].default * fields["max_workspace_bytes"].default
    assert needed * 1.25 <= int(volume.removesuffix("Gi")) * 1024**3


@pytest.mark.parametrize(
    ("mcp", "said"),
    [
        ({"servers": {"a": {"command": "a", "url": "https://a", "tenants": ["*"]}}}, "oneOf"),
        ({"servers": {"a": {"tenants": ["*"]}}}, "oneOf"),
        ({"servers": {"a": {"command": "a"}}}, "tenants"),
        ({"servers": {"a": {"command": "a", "tenants": ["*", "acme"]}}}, "tenants"),
        ({"userNamespaces": True, "unsandboxedStdioServers": True}, "which of the two"),
        ({"servers": {"a": {"url": "https://a", "bearer_token": "sesame"}}}, "bearer_token"),
        ({"servers": {"a": {"url": "https://a", "headers": {"Authorization": "sesame"}}}}, "Authorization"),
        ({"servers": {"a": {"command": "a", "env": {"API_KEY": "sesame"}}}}, "API_KEY"),
        ({"servers": {"a": {"url": "https://me:sesame@a"}}}, "url"),
        ({"servers": {"a__b": {"command": "a"}}}, "a__b"),
        ({"servers": {"a": {"command": "a", "secret": "sesame"}}}, "secret"),
        ({"unheard": {}}, "unheard"),
        (
            {"servers": {"a": {"command": "a", "tenants": ["*"]}}, "existingSecret": "mine"},
            "which of the two",
        ),
        (
            {"servers": {"a": {"url": "http://a.example.com:8080/mcp", "tenants": ["*"]}}},
            "runner.mcp.servers.a.url is on port 8080",
        ),
    ],
)
def test_servers_that_no_runner_takes_are_refused(tmp_path: Path, mcp: dict[str, Any], said: str) -> None:
    told = refusal(tmp_path, {"runner": {"mcp": mcp}})
    assert said in told
