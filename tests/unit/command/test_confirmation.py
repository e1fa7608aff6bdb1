"""A person at a terminal is asked before what cannot be undone."""

import asyncio
import os
import pty
from typing import Any

import pytest

from tests.support.command.fake_mesh import mesh, unset
from tests.support.commands import SCRIPT

__all__ = ["mesh", "unset"]

SES = "ses_" + "0" * 26


async def typed(mesh: Any, answer: str, *arguments: str) -> tuple[int, str]:
    """Run the command with a terminal as its input, and return its exit code and its question."""
    terminal, far_end = pty.openpty()
    try:
        child = await asyncio.create_subprocess_exec(
            *(SCRIPT, "--data", str(mesh.data), *arguments),
            stdin=far_end,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        os.write(terminal, f"{answer}\n".encode())
        _, asked = await child.communicate()
    finally:
        os.close(terminal)
        os.close(far_end)
    assert child.returncode is not None
    return child.returncode, asked.decode()


@pytest.mark.parametrize(
    ("command", "question"),
    [
        (("kill",), f"End {SES} and its descendants?"),
        (("sessions", "delete"), f"Delete {SES} and its descendants, with transcripts and files?"),
    ],
)
async def test_only_a_yes_goes_on(mesh: Any, command: tuple[str, ...], question: str) -> None:
    code, asked = await typed(mesh, "n", *command, SES)
    assert (code, asked.startswith(question)) == (1, True), asked
    assert mesh.sessions.requests == []
    code, asked = await typed(mesh, "y", *command, SES)
    assert code == 0, asked
    assert len(mesh.sessions.requests) == 1


async def test_yes_is_not_asked(mesh: Any) -> None:
    assert await typed(mesh, "", "kill", SES, "--yes") == (0, "")
    assert len(mesh.sessions.requests) == 1


async def test_a_script_is_not_asked(mesh: Any) -> None:
    assert (await mesh.run("kill", SES)).exit_code == 0
    assert len(mesh.sessions.requests) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("agent", "delete", "clerk"),
        ("hooks", "delete", "watcher"),
        ("webhook", "delete", "hook"),
        ("schedule", "delete", "nightly"),
        ("jobs", "discard", "acme", "kind", "key"),
    ],
)
async def test_each_deletion_asks(mesh: Any, arguments: tuple[str, ...]) -> None:
    code, asked = await typed(mesh, "n", *arguments)
    assert (code, "[y/N]:" in asked, arguments[2] in asked) == (1, True, True), asked
