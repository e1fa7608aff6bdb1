"""What operators may write of MCP servers, who may name them, and how secrets are kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_runner.mcp.config import McpConfig, McpServerNotOffered, load_config, servers_for
from spawnmesh_runner.mcp.credentials import SecretMissing, resolved, without_secrets


def loaded(tmp_path: Path, content: object) -> McpConfig:
    file = tmp_path / "mcp.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_config(file)


def test_without_a_file_there_are_no_servers() -> None:
    assert load_config(None).servers == {}


def test_both_kinds_are_read(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        {
            "servers": {
                "files": {"command": "mcp-files", "args": ["--root", "."], "env": {"LEVEL": "1", "API_KEY": "env:KEY"}},
                "git-hub_2": {
                    "url": "https://example.com/mcp",
                    "bearer_token": "file:/run/t",
                    "headers": {"X-Team": "a"},
                },
            }
        },
    )
    files, hub = config.servers["files"], config.servers["git-hub_2"]
    assert (files.args, files.tenants, files.tools, files.trust_annotations) == (("--root", "."), None, None, False)
    assert (files.call_timeout_seconds, files.max_result_bytes) == (60.0, 65536)
    assert hub.bearer_token == "file:/run/t"


@pytest.mark.parametrize(
    ("server", "told"),
    [
        ({}, "needs either command or url"),
        ({"command": "a", "url": "http://a"}, "needs either command or url"),
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
            "headers.Authorization sounds like a secret",
        ),
        ({"url": "http://a", "headers": {"X-Api-Key": "sesame"}}, "sounds like a secret"),
        (
            {"url": "http://a", "headers": {"authorization": "env:A"}, "bearer_token": "env:B"},
            "Authorization header and",
        ),
        ({"url": "http://a", "headers": {"a b": "c"}}, "a name that cannot be one"),
        ({"command": "a", "env": {"DB_PASSWORD": "sesame"}}, "env.DB_PASSWORD sounds like a secret"),
        ({"command": "a", "env": {"REGION": "env:SESAME-1"}}, "env.REGION must be env:NAME or file:/absolute/path"),
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
def test_a_wrong_configuration_ends_the_process_in_a_line_without_values(
    tmp_path: Path, server: dict[str, Any], told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        loaded(tmp_path, {"servers": {"weather": server}})
    assert told in str(ended.value)
    assert str(ended.value).startswith("runner: mcp_config_file is wrong: servers.weather")
    assert "\n" not in str(ended.value)
    assert "sesame" not in str(ended.value)


@pytest.mark.parametrize("name", ["", "A", "a__b", "a_", "-a", "a.b", "a" * 33, "a\n"])
def test_a_name_that_no_profile_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit, match="a server's name"):
        loaded(tmp_path, {"servers": {name: {"command": "a"}}})


@pytest.mark.parametrize("content", ["", "{", "[]", '{"servers": []}', '{"mcpServers": {}}'])
def test_what_is_no_configuration_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(SystemExit, match="mcp_config_file is wrong"):
        loaded(tmp_path, content)
    with pytest.raises(SystemExit, match="cannot be read"):
        load_config(tmp_path / "missing.json")


def test_only_named_servers_that_the_tenant_may_name_are_given(tmp_path: Path) -> None:
    config = loaded(tmp_path, {"servers": {"a": {"command": "a"}, "b": {"command": "b", "tenants": ["acme"]}}})
    assert list(servers_for(config, ["b", "a"], "acme")) == ["b", "a"]
    assert list(servers_for(config, ["a"], "globex")) == ["a"]
    assert servers_for(config, [], "globex") == {}
    for tenant in ("globex", ""):
        with pytest.raises(McpServerNotOffered, match=r": b, c$"):
            servers_for(config, ["a", "b", "c"], tenant)


def test_references_are_looked_up_and_other_texts_are_as_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(" from-a-file\n")
    values, secrets = resolved({"A": "env:KEY", "B": f"file:{file}", "C": "plain"}, {"KEY": "from-the-environment"})
    assert values == {"A": "from-the-environment", "B": "from-a-file", "C": "plain"}
    assert secrets == ["from-the-environment", "from-a-file"]


@pytest.mark.parametrize("reference", ["env:MISSING", "env:EMPTY", "env:LINES", "file:/no/such/file", "file:/proc"])
def test_a_reference_that_leads_to_no_secret_is_not_named(reference: str) -> None:
    with pytest.raises(SecretMissing) as raised:
        resolved({"A": reference}, {"EMPTY": " ", "LINES": "a\nb"})
    assert str(raised.value) == ""


def test_secrets_are_taken_out_longest_first_and_short_ones_left_in() -> None:
    told = without_secrets("sesame-1 sesame-1-2 ab", ["sesame-1", "sesame-1-2", "ab"])
    assert told == "[$redacted:mcp_secret] [$redacted:mcp_secret] ab"
