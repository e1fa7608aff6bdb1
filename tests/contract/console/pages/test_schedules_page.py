"""`/schedules`: the list, the form that creates one, and what a role may do."""

import httpx2
import pytest
from spawnmesh_client.client import Mesh
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.html import Page
from tests.support.console.running_console import RunningConsole
from tests.support.console.schedules import (
    NEVER_IN_A_TEST,
    SCHEDULE_ACTIONS,
    put_schedule,
    schedule_path,
)
from tests.support.console.visitors import SignedIn, form_key, open_tenant, read
from tests.support.console.webhooks import page_of

LIST = "/schedules"
OTHER_ROLES = [ClientRole.READER, ClientRole.USER]


async def create(client: httpx2.AsyncClient, name: str, **changes: str) -> httpx2.Response:
    """Send the form that creates a schedule."""
    fields = (await read(client, LIST)).form(LIST).fields
    given = {"name": name, "cron": NEVER_IN_A_TEST, "task": "Say hello.", **changes}
    return await client.post(LIST, data={**fields, **given})


def schedule_forms(page: Page) -> set[str]:
    """Return the ends of the paths of all forms of schedules on the page."""
    return {
        form.action.rpartition("/")[2]
        for form in page.forms
        if form.action.startswith("/schedules") and form.method == "post"
    }


async def test_without_schedules_the_page_says_what_they_are(signed_in: SignedIn) -> None:
    page = await read(await signed_in(), LIST)
    assert "There are no schedules." in page.text
    assert "spawnmesh schedule put" in page.text
    fields = page.form(LIST).fields
    assert fields.keys() == {
        "form_key", "name", "cron", "time_zone", "task", "agent", "overlap", "catch_up",
    }  # fmt: skip
    assert (fields["overlap"], fields["catch_up"]) == ("SKIP", "NONE")
    assert LIST in page.links, "the navigation leads here"


async def test_the_form_creates_a_schedule_and_leads_to_it(mesh: Mesh, signed_in: SignedIn) -> None:
    operator = await signed_in()
    given = {
        "cron": "0 9 * * 1-5",
        "time_zone": "Europe/Berlin",
        "task": "Sum up:\r\nall of it.",
        "overlap": "REPLACE",
        "catch_up": "LATEST",
    }
    answer = await create(operator, "nightly", **given)
    assert (answer.status_code, answer.headers["location"]) == (303, schedule_path("nightly"))
    schedule = await mesh.schedules.get("nightly")
    assert (schedule.cron, schedule.time_zone) == ("0 9 * * 1-5", "Europe/Berlin")
    assert (schedule.overlap, schedule.catch_up) == ("REPLACE", "LATEST")
    assert schedule.spawn.task == "Sum up:\nall of it."
    page = await read(operator, answer.headers["location"])
    assert "0 9 * * 1-5 at 09:00 on Monday to Friday, Europe/Berlin" in page.text
    assert "Sum up: all of it." in page.text
    repeated = await create(operator, "nightly", **given)
    assert repeated.status_code == 303, "a form that is sent twice finds its own"
    assert (await mesh.schedules.get("nightly")).etag == schedule.etag


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "Big Name"}, "Write a name"),
        ({"name": ""}, "Write a name"),
        ({"name": "n" * 64}, "Write a name"),
        ({"cron": "@daily"}, "Write a cron line"),
        ({"cron": "0 0 9 * * 1-5"}, "Write a cron line"),
        ({"cron": "0 0 30 2 *"}, "Write a cron line"),
        ({"cron": "<script> * * * *"}, "Write a cron line"),
        ({"time_zone": "Europe/Nowhere"}, "zone"),
        ({"time_zone": "../../etc/passwd"}, "zone"),
        ({"task": " \r\n "}, "There is no task."),
        ({"task": "x" * 65_537}, "at most 65,536 bytes"),
        ({"agent": "no-agent"}, "agent"),
        ({"overlap": "QUEUE"}, "Choose policies"),
        ({"catch_up": "UNKNOWN"}, "Choose policies"),
    ],
)
async def test_a_refused_form_keeps_its_fields_and_creates_nothing(
    changes: dict[str, str], problem: str, mesh: Mesh, signed_in: SignedIn
) -> None:
    operator = await signed_in()
    given = {"name": "nightly", "time_zone": "Europe/Berlin", **changes}
    answer = await create(operator, given.pop("name"), **given)
    page = page_of(answer, answer.status_code)
    assert 400 <= answer.status_code < 500
    assert len([one for one in page.tags("p") if one.get("role") == "alert"]) == 1
    assert problem in page.text
    kept = page.form(LIST).fields
    assert kept["name"] == changes.get("name", "nightly")
    assert kept["time_zone"] == changes.get("time_zone", "Europe/Berlin")
    assert kept["agent"] == changes.get("agent", "")
    assert await mesh.schedules.list() == []


async def test_the_name_of_another_schedule_changes_nothing(mesh: Mesh, signed_in: SignedIn) -> None:
    before = await put_schedule(mesh, "nightly")
    answer = await create(await signed_in(), "nightly", task="Say goodbye.")
    assert "There is another schedule of this name." in page_of(answer, 400).text
    assert (await mesh.schedules.get("nightly")).etag == before.etag


async def test_the_list_shows_times_and_outcomes(mesh: Mesh, signed_in: SignedIn) -> None:
    await mesh.schedules.put("weekly", cron="0 9 * * MON", time_zone="Asia/Tokyo", task="Say hello.")
    await put_schedule(mesh, "paused")
    await mesh.schedules.pause("paused")
    await put_schedule(mesh, "ran")
    await mesh.schedules.run("ran")
    page = await read(await signed_in(ClientRole.READER), LIST)
    assert "none yet weekly 0 9 * * MON at 09:00 on Monday, Asia/Tokyo in " in page.text
    assert f"none yet paused {NEVER_IN_A_TEST} at 03:00 on February 29, UTC paused" in page.text
    assert "spawned " in page.text
    icons = [one["class"] for one in page.tags("svg") if one["class"].startswith("icon icon-")]
    for icon in ("stopped", "succeeded"):
        assert f"icon icon-{icon}" in icons, "each state has a shape of its own"
    assert all(one["title"].endswith(" UTC") for one in page.tags("time"))


@pytest.mark.parametrize("role", OTHER_ROLES)
async def test_other_roles_see_no_action_and_are_refused(
    role: ClientRole, mesh: Mesh, signed_in: SignedIn
) -> None:
    before = await put_schedule(mesh, "nightly")
    person = await signed_in(role)
    for path in (LIST, schedule_path("nightly")):
        assert schedule_forms(await read(person, path)) == set()
    assert "Your token has the role" in (await read(person, LIST)).text
    given = {"name": "new", "cron": "0 1 29 2 *", "task": "Say hello.", "overlap": "SKIP", "catch_up": "NONE"}
    given |= {"form_key": await form_key(person)}
    for path in (LIST, *(schedule_path("nightly", action) for action in SCHEDULE_ACTIONS)):
        answer = await person.post(path, data=given)
        assert answer.status_code == 403, (path, answer.text)
        assert "The mesh refused this" in answer.text
    assert [one.etag for one in await mesh.schedules.list()] == [before.etag]


async def test_a_form_of_another_page_changes_nothing(mesh: Mesh, signed_in: SignedIn) -> None:
    before = await put_schedule(mesh, "nightly")
    operator = await signed_in()
    given = {"name": "new", "cron": "0 1 29 2 *", "task": "Say hello.", "overlap": "SKIP", "catch_up": "NONE"}
    for path in (LIST, *(schedule_path("nightly", action) for action in SCHEDULE_ACTIONS)):
        for wrong in ({}, {"form_key": "guessed"}):
            answer = await operator.post(path, data={**given, **wrong})
            assert answer.status_code == 403, path
        answer = await operator.post(
            path,
            data={**given, "form_key": await form_key(operator)},
            headers={"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
        )
        assert answer.status_code == 403, path
    assert [one.etag for one in await mesh.schedules.list()] == [before.etag]


async def test_a_tenant_sees_and_changes_nothing_of_another(
    console: RunningConsole, mesh: Mesh, signed_in: SignedIn
) -> None:
    async with open_tenant(console) as other:
        before = await put_schedule(other.mesh, "nightly", "Say task-of-the-other.")
        operator = await signed_in()
        assert "nightly" not in (await read(operator, LIST)).text
        await read(operator, schedule_path("nightly"), status=404)
        await read(operator, schedule_path("nightly") + "?part=firings", status=404)
        given = {"cron": "0 1 29 2 *", "task": "Say hello.", "form_key": await form_key(operator)}
        for action in SCHEDULE_ACTIONS:
            answer = await operator.post(schedule_path("nightly", action), data=given)
            assert answer.status_code == 404, action
        assert (await create(operator, "nightly")).status_code == 303
        assert "task-of-the-other" not in (await read(operator, schedule_path("nightly"))).text
        assert (await other.mesh.schedules.get("nightly")).etag == before.etag
        assert (await mesh.schedules.get("nightly")).spawn.task == "Say hello."
