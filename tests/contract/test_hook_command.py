"""`spawnmesh hooks`, against the running service."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.app import open_service

from tests.contract.hook_fixtures import CONTENT, FINALIZE, HookMesh, Tenant, hook_settings, open_mesh, revise
from tests.contract.serving import served

PLUGIN = """
from spawnmesh_client.hooks import hook, revise

@hook("before_agent_finalize")
def review(event):
    return revise("no")
"""


@pytest.fixture
async def mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


@pytest.fixture
async def target(mesh: HookMesh, databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[str]:
    async with served("hook", hook_settings(databases["hook"], keys), open_service) as address:
        yield address


@pytest.fixture
async def tenant(mesh: HookMesh) -> Tenant:
    return mesh.tenant(await mesh.replica())


async def command(target: str, keys: Path, tenant: Tenant, *arguments: str, given: str = "") -> tuple[int, str, str]:
    """Exit code, output and errors of `spawnmesh hooks …`."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("spawnmesh")),
        "--tenant",
        tenant.tenant_id,
        "hooks",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            "SPAWNMESH_SESSION_TARGET": "127.0.0.1:1",
            "SPAWNMESH_HOOK_TARGET": target,
            "SPAWNMESH_SIGNING_KEY_FILE": str(keys / "client.pem"),
        },
    )
    out, err = await process.communicate(given.encode())
    return process.returncode or 0, out.decode(), err.decode()


async def test_register_list_test_log_pause_remove(mesh: HookMesh, tenant: Tenant, target: str, keys: Path) -> None:
    plugin = await mesh.plugin(revise("no"))
    options = ["--hook", "before_agent_finalize", "--grant", "finalize_control", "--priority", "3"]
    options += ["--max-concurrent-calls", "2"]
    code, out, err = await command(target, keys, tenant, "register", "reviewer", plugin.endpoint, *options, "--json")
    assert (code, err) == (0, "")
    registered = json.loads(out)["plugin"]
    assert (registered["priority"], registered["max_concurrent_calls"]) == (3, 2)
    code, out, _ = await command(target, keys, tenant, "list")
    assert code == 0
    assert "reviewer" in out
    assert "before_agent_finalize" in out
    code, out, _ = await command(target, keys, tenant, "test", "reviewer")
    assert (code, "revise" in out) == (0, True)
    code, out, _ = await command(target, keys, tenant, "log", "--decision", "revise", "--since", "5", "--json")
    assert [row["plugin"] for row in json.loads(out)["deliveries"]] == ["reviewer"]
    for verb, state in (("pause", True), ("resume", False)):
        code, out, _ = await command(target, keys, tenant, verb, "reviewer", "--json")
        assert json.loads(out)["paused"] is state
    assert (await command(target, keys, tenant, "remove", "reviewer"))[0] == 0
    assert json.loads((await command(target, keys, tenant, "list", "--json"))[1]) == {"plugins": []}


async def test_a_refusal_or_a_failing_plugin_is_exit_code_1(tenant: Tenant, target: str, keys: Path) -> None:
    hook = ["--hook", "before_agent_finalize"]
    code, _, err = await command(target, keys, tenant, "register", "a", "grpc://127.0.0.1:1", *hook)
    assert (code, "GRANT_MISSING" in err) == (1, True)
    options = [*hook, "--grant", "finalize_control"]
    code, _, err = await command(target, keys, tenant, "register", "a", "grpc://127.0.0.1:1", *options)
    assert (code, "ENDPOINT_NOT_REACHED" in err) == (1, True)
    await command(target, keys, tenant, "register", "a", "grpc://127.0.0.1:1", *options, "--allow-unreachable")
    assert (await command(target, keys, tenant, "test", "a"))[0] == 1
    code, _, err = await command(target, keys, tenant, "register", "a", "grpc://127.0.0.1:1", "--hook", "nothing")
    assert (code, "before_agent_finalize" in err) == (2, True)


async def test_relay_reads_an_event_and_answers_or_lets_it_stop(
    mesh: HookMesh, tenant: Tenant, target: str, keys: Path
) -> None:
    plugin = await mesh.plugin(revise("run the tests"))
    await tenant.register("a", plugin.endpoint, FINALIZE, grants=[CONTENT])
    stop = json.dumps({"hook_event_name": "Stop", "session_id": "s", "last_assistant_message": "done"})
    code, out, _ = await command(target, keys, tenant, "relay", "--harness", "codex", given=stop)
    assert (code, json.loads(out)) == (0, {"decision": "block", "reason": "run the tests"})
    for given, at in (("{}", target), ("", target), (stop, "127.0.0.1:1")):
        code, out, err = await command(at, keys, tenant, "relay", given=given)
        assert (code, out) == (0, "")
        assert "let stop" in err


async def test_serve_runs_a_module_as_a_plugin(tenant: Tenant, keys: Path, tmp_path: Path) -> None:
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("spawnmesh")),
        "hooks",
        "serve",
        "my_plugin",
        "--jwks",
        str(keys / "jwks.json"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            while not (line := (await process.stdout.readline()).decode()).startswith("serving before_agent_finalize"):
                assert line, "it ended before it served"
        await tenant.register("a", f"grpc://{line.rpartition(' on ')[2].strip()}", FINALIZE)
        assert (await tenant.draft("k")).decision == revise("no")
    finally:
        process.terminate()
        await process.wait()


async def test_serve_wants_to_know_whose_calls_to_answer(tenant: Tenant, target: str, keys: Path) -> None:
    code, _, err = await command(target, keys, tenant, "serve", "json")
    assert (code, "--jwks" in err) == (2, True)
    code, _, err = await command(target, keys, tenant, "serve", "json", "--jwks", str(keys / "jwks.json"))
    assert (code, "marked" in err) == (1, True)
