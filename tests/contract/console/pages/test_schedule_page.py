"""`/schedules/{name}`: the times of one schedule, its forms, and its history."""

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from spawnmesh_client.budget_views import Budget
from spawnmesh_client.client import Mesh
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.furnished import MARKUP, UNSEEN
from tests.support.console.schedules import (
    NEVER_IN_A_TEST,
    SCHEDULE_ACTIONS,
    history_of,
    press_schedule,
    put_schedule,
    schedule_path,
)
from tests.support.console.visitors import SignedIn, form_key, read
from tests.support.console.webhooks import page_of

NIGHTLY = schedule_path("nightly")


async def test_the_page_has_all_details(mesh: Mesh, signed_in: SignedIn) -> None:
    await mesh.schedules.put(
        "nightly",
        cron="0 9 * * 1-5",
        time_zone="Europe/Berlin",
        task="Sum up.",
        label="the report",
        mode="SESSION",
        run_timeout=timedelta(minutes=20),
        metadata={"ticket": "17", "team": "ops"},
        budget=Budget(cost=0.5, calls=40, run_time=timedelta(minutes=10)),
        overlap="ALLOW",
        catch_up="ALL",
    )
    page = await read(await signed_in(ClientRole.READER), NIGHTLY)
    for said in (
        "Due 0 9 * * 1-5 at 09:00 on Monday to Friday, Europe/Berlin",
        "Task Sum up.",
        "Agent default",
        "Label the report",
        "Mode session",
        "Time of a run 20m",
        "Metadata team = ops, ticket = 17",
        "Budget cost=0.50, calls=40, time=10m",
        "spawn another session beside it",
        "fire the newest 100",
        "It was not due yet.",
    ):
        assert said in page.text
    assert page.text.count(" 09:00 CE") == 5, "the upcoming times are those of the clocks of the zone"
    for one in page.tags("time"):
        assert one["title"].endswith(" UTC")
        assert abs(datetime.fromisoformat(one["datetime"]) - datetime.now(UTC)) < timedelta(days=14)


async def test_pausing_pauses_and_resuming_resumes(mesh: Mesh, signed_in: SignedIn) -> None:
    await put_schedule(mesh, "nightly")
    operator = await signed_in()
    answer = await press_schedule(operator, "nightly", "pause")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{NIGHTLY}?done=paused")
    assert (await mesh.schedules.get("nightly")).paused
    page = await read(operator, answer.headers["location"])
    assert "The schedule is paused." in page.text
    assert "Due times pass until it is resumed, and are not missed." in page.text
    assert schedule_path("nightly", "pause") not in {form.action for form in page.forms}
    answer = await press_schedule(operator, "nightly", "resume")
    assert answer.headers["location"] == f"{NIGHTLY}?done=resumed"
    assert not (await mesh.schedules.get("nightly")).paused


async def test_run_now_spawns_one_session_for_each_form(mesh: Mesh, signed_in: SignedIn) -> None:
    await put_schedule(mesh, "nightly")
    operator = await signed_in()
    form = (await read(operator, NIGHTLY)).form(schedule_path("nightly", "run"))
    answers = [await operator.post(form.action, data=form.fields) for _ in range(2)]
    (firing,) = await history_of(mesh, "nightly")
    assert {one.headers["location"] for one in answers} == {f"{NIGHTLY}?ran={firing.firing_id}"}
    page = await read(operator, answers[0].headers["location"])
    assert f"A session was spawned now: {firing.session_id}" in page.text
    assert page.links.count(f"/sessions/{firing.session_id}") == 2
    assert f"spawned run now {firing.session_id}" in page.text
    assert (await mesh.session(firing.session_id)).metadata["schedule"] == "nightly"
    await press_schedule(operator, "nightly", "run")
    assert len(await history_of(mesh, "nightly")) == 2
    page = await read(operator, f"{NIGHTLY}?ran=fir_made-up")
    assert "A session was spawned now" not in page.text


async def test_the_sessions_of_the_schedule_are_found(mesh: Mesh, signed_in: SignedIn) -> None:
    await put_schedule(mesh, "nightly")
    firing = await mesh.schedules.run("nightly")
    other = await mesh.spawn("Say hello.")
    reader = await signed_in(ClientRole.READER)
    (link,) = [one for one in (await read(reader, NIGHTLY)).links if one.startswith("/sessions?")]
    assert parse_qs(urlsplit(link).query) == {"expression": ['metadata.schedule = "nightly"']}
    links = (await read(reader, link)).links
    assert f"/sessions/{firing.session_id}" in links
    assert f"/sessions/{other.session_id}" not in links


async def test_a_deletion_is_confirmed_and_bound_to_what_was_seen(mesh: Mesh, signed_in: SignedIn) -> None:
    await put_schedule(mesh, "nightly")
    operator = await signed_in()
    form = (await read(operator, NIGHTLY)).form(schedule_path("nightly", "delete"))
    await mesh.schedules.pause("nightly")
    page = page_of(await operator.post(form.action, data=form.fields), 409)
    assert "The schedule was changed while you looked." in page.text
    assert await mesh.schedules.list()
    answer = await press_schedule(operator, "nightly", "delete")
    assert (answer.status_code, answer.headers["location"]) == (303, "/schedules?done=deleted")
    assert await mesh.schedules.list() == []
    assert "The schedule was deleted." in (await read(operator, answer.headers["location"])).text
    await read(operator, NIGHTLY, status=404)


async def test_a_change_changes_what_differs_alone(mesh: Mesh, signed_in: SignedIn) -> None:
    await mesh.schedules.put(
        "nightly",
        cron=NEVER_IN_A_TEST,
        time_zone="Asia/Tokyo",
        task="Say hello.",
        label="kept",
        metadata={"ticket": "17"},
    )
    operator = await signed_in()
    unchanged = page_of(await press_schedule(operator, "nightly", "change"), 400)
    assert "Nothing was changed." in unchanged.text
    answer = await press_schedule(
        operator, "nightly", "change", cron="30 4 29 2 *", task="Say goodbye.", catch_up="LATEST"
    )
    assert answer.headers["location"] == f"{NIGHTLY}?done=changed"
    schedule = await mesh.schedules.get("nightly")
    assert (schedule.cron, schedule.time_zone, schedule.catch_up) == (
        "30 4 29 2 *",
        "Asia/Tokyo",
        "LATEST",
    )
    spawn = schedule.spawn
    assert (spawn.task, spawn.label, spawn.metadata) == ("Say goodbye.", "kept", {"ticket": "17"})


async def test_a_refused_change_keeps_the_form(mesh: Mesh, signed_in: SignedIn) -> None:
    before = await put_schedule(mesh, "nightly")
    operator = await signed_in()
    answer = await press_schedule(operator, "nightly", "change", time_zone="Europe/Nowhere")
    page = page_of(answer, 400)
    assert page.form(schedule_path("nightly", "change")).fields["time_zone"] == "Europe/Nowhere"
    assert (await mesh.schedules.get("nightly")).etag == before.etag
    form = (await read(operator, NIGHTLY)).form(schedule_path("nightly", "change"))
    await mesh.schedules.update("nightly", task="Say goodbye.")
    answer = await operator.post(form.action, data={**form.fields, "cron": "30 4 29 2 *"})
    assert "The schedule was changed while you looked." in page_of(answer, 409).text
    schedule = await mesh.schedules.get("nightly")
    assert (schedule.cron, schedule.spawn.task) == (NEVER_IN_A_TEST, "Say goodbye.")


async def test_the_history_is_filtered_and_paged(mesh: Mesh, signed_in: SignedIn) -> None:
    await put_schedule(mesh, "nightly")
    sessions = {(await mesh.schedules.run("nightly")).session_id for _ in range(27)}
    reader = await signed_in(ClientRole.READER)
    nothing = await read(reader, f"{NIGHTLY}?outcome=FAILED")
    assert "No firing of the history is like this." in nothing.text
    assert nothing.forms[-1].fields == {"outcome": "FAILED"}
    address, found = f"{NIGHTLY}?outcome=SPAWNED", list[str]()
    while address:
        page = await read(reader, address)
        found += [link.rpartition("/")[2] for link in page.links if link.startswith("/sessions/")]
        older = [link for link in page.links if "page_token" in link]
        address = older[0] if older else ""
        assert not older or "outcome=SPAWNED" in address
    assert len(found) == 27
    assert {*found} == sessions
    assert f"{NIGHTLY}?outcome=SPAWNED" in page.links, "the last page leads to the newest one"
    await read(reader, f"{NIGHTLY}?page_token=made-up", status=400)

    page = await read(reader, NIGHTLY)
    (rows,) = [one["data-refresh"] for one in page.tags("div") if "data-refresh" in one]
    fragment = await read(reader, rows)
    assert "spawned run now" in fragment.text
    assert not fragment.title, "a part of the page, and no page"


async def test_hostile_text_stays_text(mesh: Mesh, signed_in: SignedIn) -> None:
    hostile = f"{MARKUP}{UNSEEN}</textarea></dd>"
    await mesh.schedules.put(
        "nightly", cron=NEVER_IN_A_TEST, task=f"Say hello. {hostile}", metadata={"note": MARKUP}
    )
    operator = await signed_in()
    for path in ("/schedules", NIGHTLY):
        answer = await operator.get(path)
        page = page_of(answer)
        assert not {*UNSEEN} & {*answer.text}
        assert "<script>alert" not in answer.text
        assert "490063" not in answer.text
        assert not page.tags("img")
        assert all(one["src"].startswith("/static/") for one in page.tags("script"))
    assert "</td><script>alert(1)</script>" in page.text, "it is shown as it is"
    unchanged = page_of(await press_schedule(operator, "nightly", "change"), 400)
    assert "Nothing was changed." in unchanged.text


@pytest.mark.parametrize("name", ["none", "No-Name", "%3Cscript%3E", "n" * 80])
async def test_a_schedule_that_does_not_exist_is_not_found(name: str, signed_in: SignedIn) -> None:
    operator = await signed_in()
    answer = await operator.get(schedule_path(name))
    assert answer.status_code in (400, 404)
    assert "<script>" not in answer.text
    for action in SCHEDULE_ACTIONS:
        sent = {"form_key": await form_key(operator), "request_id": "again"}
        assert (await operator.post(schedule_path(name, action), data=sent)).status_code in (400, 404)
