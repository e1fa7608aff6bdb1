"""The configuration of MCP servers: what is accepted, which tenants may name them, and their
secrets.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_runner.clients.mcp.config import (
    McpConfig,
    confinement_of,
    load_mcp_config,
    offered_servers,
)
from spawnmesh_runner.clients.mcp.credentials import SecretMissing, redact_secrets, resolve_secrets
from spawnmesh_runner.domain.failure import McpServerNotOffered


def loaded(tmp_path: Path, content: object) -> McpConfig:
    file = tmp_path / "mcp.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_mcp_config(file)


def test_without_a_file_there_are_no_servers() -> None:
    assert load_mcp_config(None).servers == {}


def test_commands_and_addresses_are_read(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        {
            "servers": {
                "files": {
                    "command": "mcp-files",
                    "args": ["--root", "."],
                    "env": {"LEVEL": "1", "API_KEY": "env:KEY"},
                    "tenants": ["acme", "globex"],
                    "paths": ["/srv/mcp"],
                    "max_processes": 8,
                },
                "git-hub_2": {
                    "url": "https://example.com/mcp",
                    "bearer_token": "file:/run/t",
                    "headers": {"X-Team": "a"},
                    "tenants": ["*"],
                },
            }
        },
    )
    files, hub = config.servers["files"], config.servers["git-hub_2"]
    assert (files.args, files.tenants, files.tools, files.trust_annotations) == (
        ("--root", "."),
        ("acme", "globex"),
        None,
        False,
    )
    assert (files.paths, files.network, files.max_processes) == (("/srv/mcp",), False, 8)
    assert confinement_of(files, tmp_path).limits.processes == 8
    assert (files.call_timeout_seconds, files.max_result_bytes) == (60.0, 65536)
    assert hub.bearer_token == "file:/run/t"


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ({}, "set either command or url"),
        ({"command": "a", "tenants": None}, "tenants"),
        ({"command": "a", "tenants": ["*", "acme"]}, "stands alone"),
        ({"command": "a", "paths": ["srv"]}, "paths"),
        ({"command": "a", "paths": ["/"]}, "neither / nor /tmp"),
        ({"command": "a", "paths": ["/srv/../"]}, "plain paths"),
        ({"command": "a", "paths": ["/proc/1"]}, "nor in /dev, /proc or /sys"),
        ({"command": "a", "max_processes": 0}, "max_processes"),
        ({"url": "http://a", "network": True}, "go with command"),
        ({"url": "http://a", "paths": ["/srv"]}, "go with command"),
        ({"command": "a", "url": "http://a"}, "set either command or url"),
        ({"command": ""}, "command"),
        ({"command": "bin/server"}, "must be a name or an absolute path"),
        ({"command": "./server"}, "must be a name or an absolute path"),
        ({"command": "a", "headers": {"A": "b"}}, "headers and bearer_token go with url"),
        ({"url": "http://a", "args": ["b"]}, "args and env go with command"),
        ({"url": "ftp://a"}, "must be an http:// or https:// address"),
        ({"url": "http://user:sesame@a"}, "without user and password"),
        ({"url": "http://a", "bearer_token": "sesame"}, "must be env:NAME or file:/absolute/path"),
        (
            {"url": "http://a", "headers": {"Authorization": "Bearer sesame"}},
            "headers.Authorization looks like a secret",
        ),
        ({"url": "http://a", "headers": {"X-Api-Key": "sesame"}}, "looks like a secret"),
        (
            {"url": "http://a", "headers": {"authorization": "env:A"}, "bearer_token": "env:B"},
            "Authorization header and",
        ),
        ({"url": "http://a", "headers": {"a b": "c"}}, "a name that cannot be one"),
        ({"command": "a", "env": {"DB_PASSWORD": "sesame"}}, "env.DB_PASSWORD looks like a secret"),
        (
            {"command": "a", "env": {"REGION": "env:SESAME-1"}},
            "env.REGION must be env:NAME or file:/absolute/path",
        ),
        (
            {"url": "http://a", "headers": {"X-Team": "file:key"}},
            "headers.X-Team must be env:NAME or file:/absolute/path",
        ),
        ({"command": "a", "env": {"A=B": "sesame"}}, "a name that cannot be one"),
        ({"command": "a", "args": ["b\0"]}, "NUL"),
        ({"command": "a", "call_timeout_seconds": 0}, "call_timeout_seconds"),
        ({"command": "a", "max_result_bytes": 1_048_577}, "max_result_bytes"),
        ({"command": "a", "tenants": "acme"}, "tenants"),
        ({"command": "a", "trust_annotation": True}, "trust_annotation"),
    ],
)
def test_an_invalid_configuration_ends_the_process_with_one_line_without_values(
    tmp_path: Path, server: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        loaded(tmp_path, {"servers": {"weather": {"tenants": ["acme"], **server}}})
    assert problem in str(ended.value)
    assert str(ended.value).startswith("runner: mcp_config_file is wrong: servers.weather")
    assert "\n" not in str(ended.value)
    assert "sesame" not in str(ended.value)


@pytest.mark.parametrize("name", ["", "A", "a__b", "a_", "-a", "a.b", "a" * 33, "a\n"])
def test_an_invalid_server_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit, match="a server's name"):
        loaded(tmp_path, {"servers": {name: {"command": "a", "tenants": ["*"]}}})


@pytest.mark.parametrize("content", ["", "{", "[]", '{"servers": []}', '{"mcpServers": {}}'])
def test_malformed_json_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(SystemExit, match="mcp_config_file is wrong"):
        loaded(tmp_path, content)
    with pytest.raises(SystemExit, match="cannot be read"):
        load_mcp_config(tmp_path / "missing.json")


def test_servers_are_offered_by_name_and_tenant(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        {
            "servers": {
                "a": {"command": "a", "tenants": ["*"]},
                "b": {"command": "b", "tenants": ["acme"]},
            }
        },
    )
    assert list(offered_servers(config, ["b", "a"], "acme")) == ["b", "a"]
    assert list(offered_servers(config, ["a"], "globex")) == ["a"]
    assert offered_servers(config, [], "globex") == {}
    for tenant in ("globex", "", "*"):
        with pytest.raises(McpServerNotOffered, match=r": b, c$"):
            offered_servers(config, ["a", "b", "c"], tenant)


def test_a_server_that_names_no_tenants_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"servers\.weather\.tenants"):
        loaded(tmp_path, {"servers": {"weather": {"command": "a"}}})


@pytest.mark.parametrize("path", ["kept", "kept/key.pem", "", "link"])
def test_a_server_that_may_read_what_is_kept_from_it_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "program").mkdir()
    file = tmp_path / "mcp.json"
    server = {"command": "a", "tenants": ["*"], "paths": [str(tmp_path / "program")]}
    file.write_text(json.dumps({"servers": {"weather": server}}))
    assert load_mcp_config(file, keep_from=[tmp_path / "kept"]).servers
    server["paths"] = [str(tmp_path / path)]
    file.write_text(json.dumps({"servers": {"weather": server}}))
    with pytest.raises(SystemExit, match=r"servers\.weather: paths has the runner's workspaces"):
        load_mcp_config(file, keep_from=[tmp_path / "kept"])


def test_references_are_resolved_and_other_texts_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(" from-a-file\n")
    values, secrets = resolve_secrets(
        {"A": "env:KEY", "B": f"file:{file}", "C": "plain"}, {"KEY": "from-the-environment"}
    )
    assert values == {"A": "from-the-environment", "B": "from-a-file", "C": "plain"}
    assert secrets == ["from-the-environment", "from-a-file"]


@pytest.mark.parametrize(
    "reference", ["env:MISSING", "env:EMPTY", "env:LINES", "file:/no/such/file", "file:/proc"]
)
def test_an_unresolved_reference_is_not_named(reference: str) -> None:
    with pytest.raises(SecretMissing) as raised:
        resolve_secrets({"A": reference}, {"EMPTY": " ", "LINES": "a\nb"})
    assert str(raised.value) == ""


def test_secrets_are_redacted_longest_first_except_short_ones() -> None:
    problem = redact_secrets("sesame-1 sesame-1-2 ab", ["sesame-1", "sesame-1-2", "ab"])
    assert problem == "[$redacted:mcp_secret] [$redacted:mcp_secret] ab"
