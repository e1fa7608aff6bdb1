"""`spawnmesh agent`, against the running service."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from spawnmesh_session.app import open_service

from tests.support.commands import Commands
from tests.support.serving import served
from tests.support.session.harness import Mesh


@dataclass(frozen=True, slots=True)
class Agent:
    """`spawnmesh agent …` for one tenant of the running service."""

    commands: Commands
    target: str
    keys: Path
    tenant: str

    async def __call__(self, *arguments: str, given: str = "") -> tuple[int, str, str]:
        """Exit code, output and errors."""
        env = {
            "SPAWNMESH_SESSION_TARGET": self.target,
            "SPAWNMESH_SIGNING_KEY_FILE": str(self.keys / "client.pem"),
        }
        return await self.commands.run("--tenant", self.tenant, "agent", *arguments, env=env, given=given)


@pytest.fixture
async def agent(commands: Commands, mesh: Mesh) -> AsyncIterator[Agent]:
    async with served("session", mesh.settings, open_service) as target:
        yield Agent(commands, target, mesh.keys, mesh.tenant)


async def test_put_list_show_delete(agent: Agent, tmp_path: Path) -> None:
    profile = {
        "agent_id": "clerk",
        "system_prompt": "You file.",
        "tools": ["read_file"],
        "mcp_servers": ["weather"],
    }
    assert await agent("put", "-", given=json.dumps(profile)) == (0, "clerk\n", "")
    code, out, _ = await agent("list")
    assert code == 0
    # A long list of tools goes on in the next line, in its column.
    rows = [line for line in out.splitlines() if not line.startswith(" ")]
    assert [row.split()[0] for row in rows] == ["agent", "clerk", "default"]
    assert "read_file" in out
    assert "weather" in out
    listed = json.loads((await agent("list", "--json"))[1])["agents"]
    assert [one["agent_id"] for one in listed] == ["clerk", "default"]

    code, shown, _ = await agent("show", "clerk")
    assert (code, json.loads(shown)) == (0, listed[0])
    file = tmp_path / "clerk.json"
    file.write_text(shown.replace("You file.", "You file twice."))
    code, out, _ = await agent("put", str(file), "--json")
    changed = json.loads(out)
    assert (code, changed) == (
        0,
        {**listed[0], "system_prompt": "You file twice.", "version": "2", "etag": changed["etag"]},
    )
    file.write_text(shown.replace("You file.", "You file otherwise."))  # It has the etag of version 1.
    code, _, err = await agent("put", str(file))
    assert (code, err.startswith("error: ETAG_DIFFERS: agent clerk has changed")) == (1, True), err

    for _ in range(2):
        assert await agent("delete", "clerk") == (0, "", "")
    code, _, err = await agent("show", "clerk")
    assert (code, err.startswith("error: UNKNOWN_AGENT"), "`spawnmesh agent list`" in err) == (1, True, True)


async def test_what_is_no_agent_is_refused_in_one_line(agent: Agent, tmp_path: Path) -> None:
    for given, said in (
        ("", "no AgentProfile in JSON"),
        ("{", "no AgentProfile in JSON"),
        ("[]", "agent_id"),
        ('{"agent_id": "a", "prompt": "x"}', "prompt"),
        ('{"agent_id": "Ä"}', "agent_id"),
        ('{"agent_id": "a", "tools": ["rm"]}', "agent.tools[0]"),
    ):
        code, out, err = await agent("put", "-", given=given)
        assert (code, out, err.count("\n"), err.startswith("error: INVALID_REQUEST"), said in err) == (
            1,
            "",
            1,
            True,
            True,
        ), err
    code, _, err = await agent("put", str(tmp_path / "none.json"))
    assert (code, "No such file" in err) == (1, True)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    code, out, err = await agent("put", str(tmp_path / "bytes"), "--json")
    assert (code, json.loads(out)["error"]["reason"], err) == (1, "INVALID_REQUEST", "")
    code, _, err = await agent("delete", "default")
    assert (code, "every tenant has it" in err) == (1, True)
