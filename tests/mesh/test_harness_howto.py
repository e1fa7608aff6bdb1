"""The commands and the program of docs/howto/harness.md work unchanged."""

import re
from pathlib import Path

from spawnmesh_devstack.stack import Stack

from tests.support.mesh.shell import ROOT, shell

PAGE = (ROOT / "docs" / "howto" / "harness.md").read_text()
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
TOKEN, SPAWN = (text for language, text in BLOCKS if language == "sh")
(PROGRAM,) = (text for language, text in BLOCKS if language == "python")


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
    printed = await shell(f"{TOKEN}\n{program}\nspawnmesh --tenant acme sessions", stack, tmp_path)
    assert printed.startswith("accepted\n")
    assert printed.count("SUCCEEDED") == 1
    assert printed.count("QUEUED") == 1
    assert "QUEUED" in await shell("spawnmesh --tenant globex sessions", stack, tmp_path)
