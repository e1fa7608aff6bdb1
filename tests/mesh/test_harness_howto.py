"""The commands and the program of docs/howto/harness.md work unchanged."""

import json
from pathlib import Path

from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import shell

TOKEN, SPAWN = typed("docs/howto/harness.md")
WORKER, TOOLS, TOOLS_TEST, PROGRAM = typed("docs/howto/harness.md", "python")


async def test_harness_answers_the_runs_of_its_tenant_and_agent_alone(stack: Stack, tmp_path: Path) -> None:
    script = tmp_path / "harness.py"
    script.write_text(PROGRAM)
    targets = {
        f"SPAWNMESH_{service.upper()}_TARGET": stack.targets[service] for service in ("session", "transcript")
    }
    spawned = "spawn 'Do something else.' --external --json"
    await shell(
        f"""
        for tenant in acme globex; do spawnmesh tenant create $tenant; done
        spawnmesh --tenant globex {spawned}
        spawnmesh --tenant acme {spawned}
        {SPAWN}
        """,
        stack,
        tmp_path,
    )
    # The targets are set for the program alone: the command finds the mesh by its file.
    program = " ".join(f"{name}={target}" for name, target in targets.items()) + f" python {script}"
    assert await shell(f"{TOKEN}\n{program}", stack, tmp_path) == "accepted\n"
    assert await states("acme", stack, tmp_path) == ["RUN_STATE_QUEUED", "RUN_STATE_SUCCEEDED"]
    assert await states("globex", stack, tmp_path) == ["RUN_STATE_QUEUED"]


async def test_worker_of_the_page_answers_and_stops_at_a_signal(stack: Stack, tmp_path: Path) -> None:
    assert len(WORKER.strip().splitlines()) <= 20
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    spawned = "spawn 'Review the draft.' --agent reviewer --external --wait --json"
    printed = await shell(
        f"""
        spawnmesh tenant create umbrella >&2
        echo '{{"agent_id": "reviewer"}}' | spawnmesh --tenant umbrella agent put - >&2
        {TOKEN.replace("acme", "umbrella")}
        python {script} &
        spawnmesh --tenant umbrella {spawned} | grep -o 'Reviewed by my worker: [^"]*'
        kill -TERM $!
        wait $!
        """,
        stack,
        tmp_path,
    )
    assert "Reviewed by my worker: I am the scripted model" in printed


async def test_tools_of_the_page_pass_their_test_on_a_mesh_in_memory(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "clerk.py").write_text(TOOLS)
    (tmp_path / "test_clerk.py").write_text(TOOLS_TEST)
    options = f"-q -p no:cacheprovider --rootdir {tmp_path} -c /dev/null"
    printed = await shell(f"python -m pytest {options} {tmp_path / 'test_clerk.py'}", stack, tmp_path)
    assert "1 passed" in printed


async def states(tenant: str, stack: Stack, folder: Path) -> list[str]:
    """Return the states of the runs that only a harness may claim, sorted."""
    listed = json.loads(await shell(f"spawnmesh --tenant {tenant} sessions --json", stack, folder))
    return sorted(
        session["latest_run"]["state"]
        for session in listed["sessions"]
        if session.get("runtime") == "RUNTIME_EXTERNAL"
    )
