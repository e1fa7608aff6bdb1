"""The commands and the program in the README work unchanged."""

import re
from pathlib import Path

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import ROOT, shell

README = (ROOT / "README.md").read_text()
TYPED = "".join(typed("README.md"))
(PROGRAM,) = typed("README.md", "python")


def test_readme_has_what_the_tests_below_run() -> None:
    assert TYPED.count("spawnmesh ") >= 10
    assert "buf curl" in TYPED
    assert "curl --silent" in TYPED


@pytest.mark.parametrize("task", ["demo", "test", "up"])
async def test_make_task_exists(stack: Stack, tmp_path: Path, task: str) -> None:
    assert f"make {task}" in README
    assert f"make {task} " in await shell("make", stack, tmp_path)


@pytest.mark.timeout(420)
@pytest.mark.usefixtures("gateway")  # As `make up` has one.
async def test_commands_work_as_they_are_typed(stack: Stack, tmp_path: Path) -> None:
    await shell("spawnmesh tenant create demo", stack, tmp_path)  # As `make up` does.
    printed = await shell(TYPED, stack, tmp_path)
    assert "SUCCEEDED" in printed
    assert "invoke_agent" in printed
    assert re.search(r'"session_id":\s*"ses_', printed) or re.search(r'"sessionId":\s*"ses_', printed)


async def test_program_works_as_it_stands(stack: Stack, tmp_path: Path) -> None:
    await shell("spawnmesh tenant create readme-python", stack, tmp_path)
    script = tmp_path / "example.py"
    script.write_text(PROGRAM)
    printed = await shell(
        f"python {script}",
        stack,
        tmp_path,
        SPAWNMESH_TOKEN=stack.client_token("readme-python"),
        SPAWNMESH_TENANT="readme-python",
    )
    assert "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" in printed, (
        "the answer depends on the bytes"
    )
