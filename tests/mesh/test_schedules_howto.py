"""The commands and programs of docs/howto/schedules.md work unchanged."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from spawnmesh_devstack.stack import Stack
from spawnmesh_session.domain.schedules import check_due_times, newest_due

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import ROOT, shell
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(420)

PAGE = (ROOT / "docs" / "howto" / "schedules.md").read_text()
CREATE, USE, REMOVE, HTTP, FAILED, FIND = typed("docs/howto/schedules.md")
(CLIENT,) = typed("docs/howto/schedules.md", "python")
LINE = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|(?: ([^|]+) \|)?$", re.MULTILINE)
HTTP_PAGE = (ROOT / "docs" / "howto" / "http.md").read_text()
GATEWAY = re.search(r"^```sh\n(.*?)^```", HTTP_PAGE, re.MULTILINE | re.DOTALL)
_DUE_AND_FIRED = 150.0
"""The seconds for which a line that is due every minute is awaited."""
BERLIN = ZoneInfo("Europe/Berlin")
SET_FORWARD, SET_BACK = datetime(2027, 3, 28, tzinfo=BERLIN), datetime(2026, 10, 25, tzinfo=BERLIN)


class Person:
    """A person who follows the page for a tenant of this test."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.tenant = f"page-of-schedules-{uuid4().hex[:8]}"

    async def type(self, commands: str) -> str:
        own = commands.replace("acme", self.tenant)
        script = f"cd {self._folder}\nexport SPAWNMESH_TENANT={self.tenant}\n{own}"
        return await shell(script, self._stack, self._folder)

    async def history(self, name: str) -> list[dict[str, Any]]:
        """Return the firings of the schedule, newest first."""
        printed = json.loads(await self.type(f"spawnmesh schedule history {name} --json"))
        return list(printed["firings"])


@pytest.fixture
def person(stack: Stack, tmp_path: Path) -> Person:
    """Return a person at the begin of the page."""
    return Person(stack, tmp_path)


def section(heading: str) -> str:
    """Return the text of the page below a heading, up to the next one."""
    return re.split(r"^#+ ", PAGE.partition(f" {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def due_on(line: str, day: datetime) -> str:
    """Return the times of the day at which the line is due, as clocks in Berlin show them."""
    begin = day.astimezone(UTC)
    until = day.replace(hour=23, minute=59).astimezone(UTC)
    return ", ".join(f"{one.astimezone(BERLIN):%H:%M}" for one in newest_due(line, BERLIN.key, begin, until))


async def test_commands_work_as_they_are_typed(person: Person) -> None:
    printed = await person.type(CREATE)
    assert "Europe/Berlin" in printed
    assert printed.count(" 09:00 CE") == 5, "the next due times"
    printed = await person.type(USE)
    assert "spawnmesh watch ses_" in printed
    (firing,) = await person.history("morning")
    assert firing["outcome"] == "FIRING_OUTCOME_SPAWNED"
    assert printed.count(firing["session_id"]) >= 3, "the run, the history and the list name it"
    assert "ses_" not in await person.type(f"{FAILED}\n{FIND}"), "none has failed"
    printed = await person.type(REMOVE)
    assert "paused" in printed
    assert "active" in printed
    assert "morning" not in await person.type("spawnmesh schedule list")


async def test_program_creates_runs_and_changes(person: Person, tmp_path: Path) -> None:
    await person.type("spawnmesh tenant create acme")
    (tmp_path / "client.py").write_text(CLIENT)
    printed = await person.type("SPAWNMESH_TOKEN=$(spawnmesh token) python client.py")
    lines = printed.splitlines()
    assert re.fullmatch(r"morning \d{4}-\d\d-\d\dT0[78]:00:00\+00:00", lines[0])
    assert re.fullmatch(r"SPAWNED ses_\w{26} ", lines[-1])
    schedule = json.loads(await person.type("spawnmesh schedule get morning --json"))
    assert (schedule["cron"], schedule["overlap"]) == ("0 8 * * 1-5", "OVERLAP_POLICY_REPLACE")
    assert schedule["spawn"]["metadata"] == {"team": "ops"}


@pytest.mark.usefixtures("gateway")
async def test_http_creates_and_runs(person: Person) -> None:
    assert GATEWAY is not None
    printed = await person.type(f"{GATEWAY[1]}\n" + HTTP.replace("\ncurl", "\necho\ncurl"))
    created, ran, listed = (json.loads(line) for line in printed.splitlines() if line.startswith("{"))
    assert created["schedule"]["time_zone"] == "Europe/Berlin"
    assert [one["firing_id"] for one in listed["firings"]] == [ran["firing"]["firing_id"]]
    assert ran["firing"]["session_id"].startswith("ses_")


async def test_a_due_time_is_fired_and_one_that_fails_says_why(person: Person) -> None:
    """Both lines are due at the same minute, so that it is awaited once."""
    agent = json.dumps({"agent_id": "clerk", "system_prompt": "Be brief."})
    await person.type(
        f"spawnmesh tenant create acme\nprintf '%s' '{agent}' | spawnmesh agent put -\n"
        'spawnmesh schedule put morning --cron "* * * * *" --task "Say hello." --agent clerk\n'
        'spawnmesh schedule put hello --cron "* * * * *" --task "Say hello."\n'
        "spawnmesh agent delete clerk"
    )

    async def fired(name: str, outcome: str) -> list[dict[str, Any]]:
        firings = await person.history(name)
        return [one for one in firings if one["outcome"] == f"FIRING_OUTCOME_{outcome}"]

    (failed, *_) = await eventually(lambda: fired("morning", "FAILED"), within_seconds=_DUE_AND_FIRED)
    (spawned, *_) = await eventually(lambda: fired("hello", "SPAWNED"), within_seconds=_DUE_AND_FIRED)
    await person.type("spawnmesh schedule pause hello")
    assert failed["error_reason"] == "UNKNOWN_AGENT"
    assert not failed.get("session_id")
    assert "UNKNOWN_AGENT" in await person.type(FAILED)
    assert "`UNKNOWN_AGENT`" in section("When a firing fails")
    assert not spawned.get("is_manual")
    found = await person.type("spawnmesh sessions --filter 'metadata.schedule = \"hello\"'")
    assert spawned["session_id"] in found


def test_each_line_of_the_page_is_due() -> None:
    lines = [line for line, *_ in LINE.findall(section("Cron lines and time zones"))]
    assert len(lines) == 5
    for line in lines:
        check_due_times(line, "UTC", datetime(2026, 11, 30, tzinfo=UTC))
    quarters = due_on("*/15 8-17 * * *", SET_FORWARD).split(", ")
    assert (quarters[0], quarters[-1], len(quarters)) == ("08:00", "17:45", 40)


def test_the_table_says_what_happens_when_clocks_change() -> None:
    rows = LINE.findall(section("When clocks change"))
    assert len(rows) == 3
    for line, forward, back in rows:
        assert due_on(line, SET_FORWARD) == forward.strip(), line
        assert due_on(line, SET_BACK) == back.strip(), line
