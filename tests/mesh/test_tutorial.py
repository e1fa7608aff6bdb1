"""The tutorial works line by line, and prints what it says."""

import re
from pathlib import Path
from uuid import uuid4

import pytest
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import all_typed
from tests.support.mesh.shell import shell

BLOCKS = all_typed("docs/tutorial.md")
NEXT = "--- the next block ---"
ANY_LINES, ANY = r"(?:.*\n)*?", r".*"
PORT = "7000"
SERVES = "until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.1; done"


def matches(expected: str, printed: str) -> bool:
    """Return whether the output is as expected: `…` is any text, and lines of it are any lines."""
    parts = [
        ANY_LINES if line == "…" else ANY.join(map(re.escape, line.split("…"))) + r" *\n"
        for line in expected.splitlines()
    ]
    return re.fullmatch("".join(parts), printed) is not None


@pytest.mark.timeout(300)
async def test_every_block_works_and_prints_what_the_page_says(stack: Stack, tmp_path: Path) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    (port,) = free_ports(1)
    script, expected = [f"cd {tmp_path}"], dict[int, str]()
    for language, text in BLOCKS:
        body = text.replace("demo", tenant).replace(PORT, str(port))
        if language == "python":
            (tmp_path / body.split()[1]).write_text(body)
        elif language == "sh":
            wait = SERVES.format(port=port) if "hooks serve" in body else ""
            script.append(f"echo '{NEXT}'\n{body}\n{wait}")
        else:
            expected[len(script) - 2] = body
    await shell(f"spawnmesh tenant create {tenant}", stack, tmp_path)
    printed = await shell("\n".join(script), stack, tmp_path, SPAWNMESH_TOKEN=stack.client_token(tenant))
    outputs = printed.split(f"{NEXT}\n")[1:]
    assert len(expected) == 6
    for place, text in expected.items():
        assert matches(text, outputs[place]), f"{text}\n--- printed:\n{outputs[place]}"
