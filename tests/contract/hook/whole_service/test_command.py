"""The command `spawnmesh hooks` against the running service."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.app import open_service
from spawnmesh_runtime.peers import Peer

from tests.support.commands import Commands
from tests.support.hook.fixtures import CONTENT, FINALIZE, HookMesh, Tenant, hook_settings
from tests.support.hook.plugin_process import serving
from tests.support.hook.scripted_plugin import revise
from tests.support.serving import served

PLUGIN = """
from spawnmesh_plugin import hook, revise

@hook("before_agent_finalize")
def review(event):
    return revise("no")
"""


@pytest.fixture(scope="module")
async def target(shared_mesh: HookMesh, databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[str]:
    """The address of a replica."""
    async with served("hook", hook_settings(databases["hook"], keys), open_service) as address:
        yield address


@pytest.fixture
async def tenant(mesh: HookMesh, replica: Peer) -> Tenant:
    tenant = mesh.tenant(replica)
    await tenant.prepare(1)
    return tenant


@dataclass(frozen=True, slots=True)
class Hooks:
    """Runs `spawnmesh hooks …` for one tenant of the running service."""

    commands: Commands
    target: str
    keys: Path
    tenant: Tenant

    async def __call__(self, *arguments: str, given: str = "", at: str = "") -> tuple[int, str, str]:
        """Return the exit code, the output and the errors."""
        env = {
            "SPAWNMESH_SESSION_TARGET": "127.0.0.1:1",
            "SPAWNMESH_HOOK_TARGET": at or self.target,
            "SPAWNMESH_SIGNING_KEY_FILE": str(self.keys / "client.pem"),
        }
        return await self.commands.run(
            "--tenant", self.tenant.tenant_id, "hooks", *arguments, env=env, given=given
        )


@pytest.fixture
def hooks(commands: Commands, target: str, keys: Path, tenant: Tenant) -> Hooks:
    return Hooks(commands, target, keys, tenant)


async def test_register_list_test_log_pause_remove(mesh: HookMesh, hooks: Hooks) -> None:
    plugin = await mesh.plugin(revise("no"))
    options = ["--hook", "before_agent_finalize", "--grant", "finalize_control", "--priority", "3"]
    options += ["--max-concurrent-calls", "2", "--max-wait", "90"]
    code, out, err = await hooks("register", "reviewer", plugin.endpoint, *options, "--json")
    assert (code, err) == (0, "")
    registered = json.loads(out)["plugin"]
    assert (registered["priority"], registered["max_concurrent_calls"]) == (3, 2)
    assert registered["max_wait"] == "90s"
    code, out, _ = await hooks("list")
    assert code == 0
    assert "reviewer" in out
    assert "before_agent_finalize" in out
    code, out, _ = await hooks("test", "reviewer")
    assert (code, "revise" in out) == (0, True)
    code, out, _ = await hooks("log", "--decision", "revise", "--since", "5", "--json")
    assert [row["plugin"] for row in json.loads(out)["deliveries"]] == ["reviewer"]
    for verb, state in (("pause", True), ("resume", False)):
        code, out, _ = await hooks(verb, "reviewer", "--json")
        assert json.loads(out)["paused"] is state
    assert (await hooks("delete", "reviewer"))[0] == 0
    assert json.loads((await hooks("list", "--json"))[1]) == {"plugins": []}


async def test_a_refusal_or_a_failing_plugin_is_exit_code_1(hooks: Hooks) -> None:
    hook = ["--hook", "before_agent_finalize"]
    code, _, err = await hooks("register", "a", "grpc://127.0.0.1:1", *hook)
    assert (code, "GRANT_MISSING" in err) == (1, True)
    options = [*hook, "--grant", "finalize_control"]
    code, _, err = await hooks("register", "a", "grpc://127.0.0.1:1", *options)
    assert (code, "ENDPOINT_NOT_REACHED" in err) == (1, True)
    await hooks("register", "a", "grpc://127.0.0.1:1", *options, "--allow-unreachable")
    assert (await hooks("test", "a"))[0] == 1
    code, _, err = await hooks("pause", "nobody")
    assert (code, err.rstrip().endswith("`spawnmesh hooks list` lists what there is")) == (1, True)
    code, _, err = await hooks("register", "a", "grpc://127.0.0.1:1", "--hook", "nothing")
    assert (code, "before_agent_finalize" in err) == (2, True)


async def test_relay_reads_an_event_and_answers_or_allows_the_stop(
    mesh: HookMesh, tenant: Tenant, target: str, hooks: Hooks
) -> None:
    plugin = await mesh.plugin(revise("run the tests"))
    await tenant.register("a", plugin.endpoint, FINALIZE, grants=[CONTENT])
    stop = json.dumps({"hook_event_name": "Stop", "session_id": "s", "last_assistant_message": "done"})
    code, out, _ = await hooks("relay", "--harness", "codex", given=stop)
    assert (code, json.loads(out)) == (0, {"decision": "block", "reason": "run the tests"})
    for given, at in (("{}", target), ("", target), (stop, "127.0.0.1:1")):
        code, out, err = await hooks("relay", given=given, at=at)
        assert (code, out) == (0, "")
        assert "may stop" in err


async def test_serve_runs_a_module_as_a_plugin(
    fork_server: ForkServer, tenant: Tenant, keys: Path, tmp_path: Path
) -> None:
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    async with serving(fork_server, "my_plugin", keys, tenant.tenant_id, cwd=tmp_path) as endpoint:
        await tenant.register("a", endpoint, FINALIZE)
        assert (await tenant.draft("k")).decision == revise("no")


async def test_serve_requires_tenants_and_endpoint(hooks: Hooks, keys: Path) -> None:
    mesh = ("--jwks", str(keys / "jwks.json"))
    for arguments, missing in (
        (("--for-all-tenants",), "--jwks"),
        (mesh, "--for-tenant"),
        ((*mesh, "--for-tenant", "acme", "--for-all-tenants"), "--for-tenant"),
        ((*mesh, "--for-all-tenants", "--listen", "0.0.0.0:7000"), "--endpoint"),
        ((*mesh, "--for-all-tenants", "--listen", "[::]:7000"), "--endpoint"),
        ((*mesh, "--for-all-tenants", "--listen", "127.0.0.1:0"), "--endpoint"),
    ):
        code, _, err = await hooks("serve", "json", *arguments)
        assert (code, missing in err) == (2, True), arguments
    code, _, err = await hooks("serve", "json", *mesh, "--for-all-tenants", "--endpoint", "policy:7000")
    assert (code, "--endpoint must be grpc://host:port" in err) == (1, True)
    code, _, err = await hooks("serve", "json", *mesh, "--for-tenant", "acme")
    assert (code, "marked" in err) == (1, True)
