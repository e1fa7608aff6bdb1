"""The commands and programs of docs/howto/budgets.md work unchanged."""

import asyncio
import json
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import ROOT, shell
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(420)

SET_UP, SPAWN, RAISE = typed("docs/howto/budgets.md")
CLIENT, WORKER, TEST = typed("docs/howto/budgets.md", "python")
(WAITS,) = typed("docs/howto/budgets.md", "text")
HTTP_PAGE = (ROOT / "docs" / "howto" / "http.md").read_text()
GATEWAY = re.search(r"^```sh\n(.*?)^```", HTTP_PAGE, re.MULTILINE | re.DOTALL)
WORKING = """
import asyncio

from spawnmesh_client import Attachment, Reason, ResourceExhausted, connect
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.worker import Worker


{function}

async def main() -> None:
    async with connect() as mesh:
        worker = Worker(mesh)
        worker.agent("clerk")(write)
        await worker.run()


asyncio.run(main())
"""


class Person:
    """A person who types the commands of the page for a tenant of this test, in a folder."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._log = folder / "typed.log"
        self.tenant = f"page-of-budgets-{uuid4().hex[:8]}"

    async def type(self, commands: str, session_id: str = "ses_…") -> str:
        typed = commands.replace("acme", self.tenant).replace("ses_…", session_id)
        script = f"cd {self._folder}\nexport SPAWNMESH_TENANT={self.tenant}\n{typed}"
        return await shell(script, self._stack, self._folder)

    async def type_and_log(self, commands: str) -> str:
        """Type the commands. The log of the person has their output as it comes."""
        return await self.type(f"{{\n{commands}\n}} 2>&1 | tee {self._log}")

    def reads_how_to_raise(self) -> bool:
        """Return whether the log has the command that raises a budget."""
        return self._log.exists() and "raise it: spawnmesh budget" in self._log.read_text()

    async def waiting(self) -> str:
        """Return the session whose run waits for its budget, once there is one."""
        (session,) = await eventually(self._waiting)
        assert session["latest_run"]["budget_session_id"] == session["session_id"]
        return str(session["session_id"])

    async def recorded(self, session_id: str) -> dict[str, Any]:
        """Return the usage of an ended session once its budget has the cost of all its calls."""

        async def agrees() -> dict[str, Any]:
            usage: dict[str, Any] = json.loads(await self.type(f"spawnmesh budget {session_id} --json"))
            costs = usage["session"]["usage"]["cost_micros"], usage["budgets"][0]["usage"]["cost_micros"]
            return usage if costs[0] == costs[1] else {}

        return await eventually(agrees)

    async def _waiting(self) -> list[dict[str, Any]]:
        listed = await self.type("spawnmesh sessions --filter 'run_state = WAITING_BUDGET' --json")
        found: list[dict[str, Any]] = json.loads(listed)["sessions"]
        return found


@pytest.fixture
async def person(stack: Stack, tmp_path: Path) -> Person:
    """Return a person after the set-up of the page."""
    one = Person(stack, tmp_path)
    await one.type(SET_UP)
    return one


async def typed_while(running: Awaitable[str], person: Person, commands: str) -> tuple[str, str, str]:
    """Type the commands when a run waits and a command that writes to the log has said so. Return
    the session, their output and that of the running commands.
    """
    async with asyncio.TaskGroup() as group:
        first = group.create_task(_awaited(running))
        session_id = await person.waiting()
        await eventually(person.reads_how_to_raise)
        printed = await person.type(commands, session_id)
    return session_id, printed, first.result()


async def _awaited(running: Awaitable[str]) -> str:
    return await running


async def test_commands_work_as_they_are_typed(person: Person) -> None:
    session_id, shown, spawned = await typed_while(person.type_and_log(SPAWN), person, RAISE)

    assert WAITS.replace("ses_…", session_id) in spawned
    assert "RUN  SUCCEEDED" in spawned or "sha256" in spawned, "the answer came"
    before, after = re.findall(rf"^{session_id} .*$", shown, re.MULTILINE)
    assert re.search(r"0\.00\d* of 0\.50 .* 1 of 1 .* 7d", before)
    assert re.search(r"0\.00\d* of 1\.00 .* 1 of 60 .* 7d .* by ", after)
    usage = await person.recorded(session_id)
    assert usage["session"]["ended_run_count"] == "1"
    assert int(usage["session"]["usage"]["cost_micros"]) > 0
    events = await person.type(f"spawnmesh watch {session_id}")
    assert re.search(r"BUDGET_CHANGED  cost 0\.50 -> 1\.00, model calls 1 -> 60 by ", events)
    assert re.search(
        rf"WAITING_BUDGET  run_\w+  the budget of session {session_id} is used up: model calls 1 of 1", events
    )


async def test_program_raises_the_budget(person: Person, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    printed = await person.type("SPAWNMESH_TOKEN=$(spawnmesh token) python client.py")
    first, *_, used, family = printed.splitlines()
    session_id = first.split()[0]
    assert first == f"{session_id} (<BudgetLimit.MODEL_CALLS: 'MODEL_CALLS'>,) 1 1"
    inputs, outputs, cost = used.split()
    assert (int(inputs) > 0, int(outputs) > 0, float(cost) > 0) == (True, True, True)
    assert family == f"1 {cost}"


async def test_worker_waits_and_saves_what_it_has(person: Person, tmp_path: Path) -> None:
    (tmp_path / "writer.py").write_text(WORKING.format(function=WORKER))
    token = f"spawnmesh token --runner --tenant {person.tenant} --agent clerk"
    commands = f"""
        SPAWNMESH_TOKEN=$({token}) python writer.py > writer.log 2>&1 &
        spawnmesh spawn "Write." --agent clerk --external --budget calls=1 --wait
        kill -TERM $!
        wait $!
    """
    try:
        session_id, shown, spawned = await typed_while(
            person.type_and_log(commands),
            person,
            "spawnmesh outputs ses_…\nspawnmesh budget ses_… --set calls=9",
        )
    except BaseExceptionGroup:
        raise AssertionError((tmp_path / "writer.log").read_text()) from None
    assert "draft.md" in shown
    assert f"raise it: spawnmesh budget {session_id} --set calls=2" in spawned
    usage = await person.recorded(session_id)  # Also what it used before the wait.
    assert usage["budgets"][0]["usage"]["model_call_count"] == "3"


@pytest.mark.usefixtures("gateway")
async def test_http_shows_and_raises(person: Person) -> None:
    assert GATEWAY is not None
    paths = "/v1/sessions/ses_…/usage", "/v1/sessions/ses_…/budget"
    body = '{"max_cost_micros": 1000000}'
    for text in (*paths, body, '"budget": {"max_cost_micros": 500000, "max_model_call_count": 40}'):
        assert text in HTTP_PAGE
    spawn = SPAWN.replace(" --wait", "").replace("--budget cost=0.50,calls=1", "--budget cost=0.000001")
    await person.type(spawn)
    session_id = await person.waiting()
    curl = 'curl --silent --fail-with-body --header "$AUTH"'
    printed = await person.type(
        f'{GATEWAY[1]}\n{curl} "$GATEWAY{paths[0]}"\necho\n'
        f"{curl} --request PATCH \"$GATEWAY{paths[1]}\" --json '{body}'",
        session_id,
    )
    usage, changed = (json.loads(line) for line in printed.splitlines()[-2:])
    assert usage["budgets"][0]["reached_limits"] == ["BUDGET_LIMIT_COST"]
    assert changed["budget"]["budget"]["max_cost_micros"] == "1000000"
    assert "SUCCEEDED" in await person.type("spawnmesh wait ses_…", session_id)


async def test_test_of_the_page_passes(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    process = await asyncio.create_subprocess_exec(
        str(ROOT / ".venv" / "bin" / "pytest"), "-q", "-c", "pytest.ini", "-p", "no:cacheprovider", ".",
        cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    printed, _ = await process.communicate()
    assert "1 passed" in printed.decode(), printed.decode()
