"""`/webhooks/{name}`: the state of one webhook, its forms, and the log of what it was sent."""

import json
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from spawnmesh_client import Budget
from spawnmesh_client.client import Mesh, connect
from spawnmesh_client.webhooks import verify
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.furnished import UNSEEN
from tests.support.console.receivers import Receivers
from tests.support.console.visitors import ConsoleTenant, SignedIn, form_key, read
from tests.support.console.webhooks import (
    DEAD_ADDRESS,
    delivery_in,
    log_of,
    page_of,
    path_of,
    press,
    put,
    secrets_in,
)
from tests.support.waiting import eventually

BILLING = path_of("billing")
GIVE_UP = """
update hook.webhook_deliveries
set state = 'FAILED', attempt_time = null, end_time = now(), attempts = '[]', attempt_count = 0,
    event_time = now() - make_interval(days => %s)
where tenant_id = %s
"""
HOSTILE = f"</pre><script>alert(1)</script>{UNSEEN}"


async def give_up(tenant: ConsoleTenant, days_ago: int) -> None:
    """Let all messages of the tenant be given up without an attempt, and their events be so old."""
    dsn = tenant.console.stack.superuser_dsn
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(GIVE_UP, (days_ago, tenant.tenant_id))


async def test_pausing_pauses_and_resuming_resumes(mesh: Mesh, signed_in: SignedIn) -> None:
    await put(mesh, "billing")
    operator = await signed_in()
    answer = await press(operator, "billing", "pause")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{BILLING}?done=paused")
    assert (await mesh.webhooks.get("billing")).paused
    page = await read(operator, f"{BILLING}?done=paused")
    assert "The webhook is paused. Its messages wait." in page.text
    assert "Paused by a person." in page.text
    assert path_of("billing", "pause") not in {form.action for form in page.forms}
    answer = await press(operator, "billing", "resume")
    assert answer.headers["location"] == f"{BILLING}?done=resumed"
    assert not (await mesh.webhooks.get("billing")).paused


async def test_a_test_shows_its_outcome(mesh: Mesh, signed_in: SignedIn, receivers: Receivers) -> None:
    receiver = receivers.open()
    await put(mesh, "billing", receiver.url)
    operator = await signed_in()
    answer = await press(operator, "billing", "test")
    page = await read(operator, answer.headers["location"])
    assert "The test was received: 204." in page.text
    receiver.status = 500
    answer = await press(operator, "billing", "test")
    page = await read(operator, answer.headers["location"])
    assert "The test was not received: HTTP status 500." in page.text
    assert len(receiver.requests) == 2
    page = await read(operator, f"{BILLING}?tested=evt_made-up")
    assert "The test was" not in page.text


async def test_a_deletion_is_confirmed_and_bound_to_what_was_seen(mesh: Mesh, signed_in: SignedIn) -> None:
    await put(mesh, "billing")
    operator = await signed_in()
    form = (await read(operator, BILLING)).form(path_of("billing", "delete"))
    await mesh.webhooks.pause("billing")
    page = page_of(await operator.post(form.action, data=form.fields), 409)
    assert "The webhook was changed while you looked." in page.text
    assert await mesh.webhooks.list()
    answer = await press(operator, "billing", "delete")
    assert (answer.status_code, answer.headers["location"]) == (303, "/webhooks?done=deleted")
    assert await mesh.webhooks.list() == []
    assert "The webhook was deleted." in (await read(operator, answer.headers["location"])).text
    await read(operator, BILLING, status=404)


async def test_a_change_changes_what_differs(mesh: Mesh, signed_in: SignedIn) -> None:
    await put(mesh, "billing", DEAD_ADDRESS, "run.ended")
    operator = await signed_in()
    unchanged = page_of(await press(operator, "billing", "change"), 400)
    assert "Nothing was changed." in unchanged.text
    types = ["run.ended", "session.ended"]
    answer = await press(operator, "billing", "change", type=types, timeout="2.5")
    assert answer.headers["location"] == f"{BILLING}?done=changed"
    webhook = await mesh.webhooks.get("billing")
    assert {*webhook.event_types} == {*types}
    assert (webhook.url, webhook.timeout) == (DEAD_ADDRESS, timedelta(seconds=2.5))
    page = await read(operator, BILLING)
    assert "2.5 s" in page.text
    boxes = [one["value"] for one in page.tags("input") if one.get("name") == "type" and "checked" in one]
    assert {*boxes} == {*types}


async def test_a_refused_change_keeps_the_form(mesh: Mesh, signed_in: SignedIn) -> None:
    await put(mesh, "billing")
    operator = await signed_in()
    page = page_of(await press(operator, "billing", "change", url=f"{DEAD_ADDRESS}/2"), 409)
    assert page.form(path_of("billing", "change")).fields["url"] == f"{DEAD_ADDRESS}/2"
    assert "or say in the form that nothing does yet" in page.text
    form = (await read(operator, BILLING)).form(path_of("billing", "change"))
    await mesh.webhooks.pause("billing")
    answer = await operator.post(form.action, data={**form.fields, "timeout": "9"})
    assert "The webhook was changed while you looked." in page_of(answer, 409).text
    assert (await mesh.webhooks.get("billing")).url == DEAD_ADDRESS


async def test_a_rotation_shows_the_new_secret_once(
    mesh: Mesh, signed_in: SignedIn, receivers: Receivers
) -> None:
    receiver = receivers.open()
    first = await put(mesh, "billing", receiver.url)
    operator = await signed_in()
    form = (await read(operator, BILLING)).form(path_of("billing", "rotate"))
    assert form.fields["keep"] == "day"
    page = page_of(await operator.post(form.action, data=form.fields))
    (second,) = secrets_in(page)
    assert second != first
    assert "Messages are signed with the previous secret too." in page.text
    assert secrets_in(page_of(await operator.post(form.action, data=form.fields))) == [second]

    page = await read(operator, BILLING)
    assert "Messages are signed with the previous secret too. It ends in 23 h." in page.text
    await press(operator, "billing", "test")
    headers, body = receiver.requests[-1]
    assert verify(first, headers, body).id == verify(second, headers, body).id

    for unclear in ("", "week"):
        refused = page_of(await press(operator, "billing", "rotate", keep=unclear), 400)
        assert "Choose whether the secret that is in use now signs for another day." in refused.text
        assert not secrets_in(refused)
    page = page_of(await press(operator, "billing", "rotate", keep="none"))
    assert "The previous secret is not used any more." in page.text
    (third,) = secrets_in(page)
    assert (await mesh.webhooks.get("billing")).previous_secret_expire_time is None
    for path in (BILLING, "/webhooks", f"{BILLING}?part=deliveries"):
        text = (await operator.get(path)).text
        assert not any(secret in text for secret in ("whsec_", first, second, third))


async def test_the_log_shows_messages_with_their_attempts_and_bodies(
    mesh: Mesh, signed_in: SignedIn, receivers: Receivers
) -> None:
    receiver = receivers.open()
    await put(mesh, "billing", receiver.url, "run.ended")
    session = await mesh.spawn("Say hello.")
    await session.result(60)
    delivery = await delivery_in(mesh, "billing", "DELIVERED")
    reader = await signed_in(ClientRole.READER)
    page = await read(reader, BILLING)
    assert "delivered run.ended 204" in page.text
    assert f"/sessions/{session.session_id}" in page.links
    assert delivery.event_id in page.text
    assert '"type": "run.ended"' in page.text
    assert '"outcome": "SUCCEEDED"' in page.text
    replays = [one for one in page.tags("button") if one.get("form") == "replay"]
    assert not replays, "a reader sends nothing again"
    (rows,) = [one["data-refresh"] for one in page.tags("div") if "data-refresh" in one]
    fragment = await read(reader, rows)
    assert "delivered run.ended 204" in fragment.text
    assert not fragment.title, "a part of the page, and no page"
    assert (await reader.get(rows)).text == (await reader.get(rows)).text, "it changes with the log alone"


async def test_the_log_is_filtered_and_paged(mesh: Mesh, signed_in: SignedIn, receivers: Receivers) -> None:
    receiver = receivers.open()
    await put(mesh, "billing", receiver.url, "session.ended")
    for _ in range(26):
        await mesh.webhooks.test("billing")
    receiver.status = 503
    await mesh.webhooks.test("billing")
    reader = await signed_in(ClientRole.READER)
    failed = await read(reader, f"{BILLING}?state=FAILED")
    assert failed.text.count("Attempts and body") == 1
    assert "failed webhook.test HTTP status 503" in failed.text
    nothing = await read(reader, f"{BILLING}?state=PENDING&type=webhook.test")
    assert "No message of the log is like this." in nothing.text
    assert "No message of the log is like this." in (await read(reader, f"{BILLING}?type=run.ended")).text
    assert nothing.forms[-1].fields == {"state": "PENDING", "type": "webhook.test"}

    address, ids = f"{BILLING}?type=webhook.test", set[str]()
    while address:
        page = await read(reader, address)
        ids |= {word for word in page.text.split() if word.startswith("evt_")}
        older = [link for link in page.links if "page_token" in link]
        address = older[0] if older else ""
        assert not older or "type=webhook.test" in address
    assert len(ids) == 27
    assert f"{BILLING}?type=webhook.test" in page.links, "the last page leads to the newest one"
    await read(reader, f"{BILLING}?page_token=made-up", status=400)


async def test_a_message_is_sent_again(mesh: Mesh, signed_in: SignedIn, receivers: Receivers) -> None:
    receiver = receivers.open()
    secret = await put(mesh, "billing", receiver.url, "run.ended")
    session = await mesh.spawn("Say hello.")
    await session.result(60)
    delivery = await delivery_in(mesh, "billing", "DELIVERED")
    operator = await signed_in()
    page = await read(operator, BILLING)
    (button,) = [one for one in page.tags("button") if one.get("name") == "event_id"]
    assert (button["form"], button["value"]) == ("replay", delivery.event_id)
    answer = await press(operator, "billing", "replay", event_id=delivery.event_id)
    assert answer.headers["location"] == f"{BILLING}?replayed=1"
    assert "One message is sent again." in (await read(operator, answer.headers["location"])).text

    async def came_twice() -> bool:
        return len(receiver.requests) == 2

    await eventually(came_twice)
    first, second = (verify(secret, *request) for request in receiver.requests)
    assert first == second, "the same message"


async def test_what_was_given_up_is_sent_again(
    tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn, receivers: Receivers
) -> None:
    receiver = receivers.open()
    await put(mesh, "billing", receiver.url, "run.ended")
    await mesh.webhooks.pause("billing")
    session = await mesh.spawn("Say hello.")
    await session.result(60)
    await eventually(lambda: log_of(mesh, "billing"))
    await give_up(tenant, days_ago=3)
    operator = await signed_in()
    page = await read(operator, BILLING)
    assert "failed run.ended given up: the webhook failed for a day" in page.text
    assert "It was not sent." in page.text

    answer = await press(operator, "billing", "replay", failed="week")
    assert answer.headers["location"] == f"{BILLING}?replayed=1"
    page = await read(operator, BILLING)
    assert "pending run.ended" in page.text, "the webhook is paused"
    assert "It was not sent yet." in page.text
    await press(operator, "billing", "resume")
    delivered = await delivery_in(mesh, "billing", "DELIVERED")
    assert delivered.attempt_count == len(receiver.requests) == 1
    await give_up(tenant, days_ago=8)
    answer = await press(operator, "billing", "replay", failed="week")
    assert "There was nothing to send again." in (await read(operator, answer.headers["location"])).text


async def test_what_a_webhook_that_was_gone_missed_is_sent_when_it_is_resumed(
    mesh: Mesh, signed_in: SignedIn, receivers: Receivers
) -> None:
    receiver = receivers.open()
    receiver.status = 410
    await put(mesh, "billing", receiver.url, "run.ended")
    session = await mesh.spawn("Say hello.")
    await session.result(60)
    pending = await delivery_in(mesh, "billing", "PENDING")
    operator = await signed_in()
    page = await read(operator, BILLING)
    assert "paused by the mesh" in page.text
    assert "by the mesh: it answered that it is gone (HTTP status 410). Its messages wait" in page.text
    assert "pending run.ended HTTP status 410" in page.text

    receiver.status = 200
    await press(operator, "billing", "resume")
    delivered = await delivery_in(mesh, "billing", "DELIVERED")
    assert (delivered.event_id, delivered.attempt_count) == (pending.event_id, 2)
    assert "paused" not in (await read(operator, "/webhooks")).text


async def test_a_replay_of_nothing_is_refused(mesh: Mesh, signed_in: SignedIn) -> None:
    await put(mesh, "billing")
    operator = await signed_in()
    answer = await press(operator, "billing", "replay")
    assert "The form names no message." in page_of(answer, 400).text
    assert (await press(operator, "billing", "replay", event_id="evt_none")).status_code == 404
    assert await log_of(mesh, "billing") == []


async def test_hostile_text_stays_text(tenant: ConsoleTenant, mesh: Mesh, signed_in: SignedIn) -> None:
    address = "https://127.0.0.1:1/<script>alert(1)</script>\"'{{70009*7}}"
    await put(mesh, "billing", address, "budget.changed")
    session = await mesh.spawn("Say hello.", budget=Budget(calls=5))
    token = tenant.token(subject=HOSTILE)
    async with connect(targets=tenant.console.stack.targets, token=token) as hostile:
        await (await hostile.session(session.session_id)).set_budget(calls=6)
    delivery = await delivery_in(mesh, "billing", "PENDING")
    assert json.loads(delivery.body_json)["data"]["changed_by"] == HOSTILE
    operator = await signed_in()
    for path in ("/webhooks", BILLING):
        answer = await operator.get(path)
        page = page_of(answer)
        assert not {*UNSEEN} & {*answer.text}
        assert "<script>alert" not in answer.text
        assert "490063" not in answer.text
        assert address in page.text
        assert not any("alert(1)" in link for link in page.links)
        assert all(one["src"].startswith("/static/") for one in page.tags("script"))
    assert "</pre><script>alert(1)</script>" in page.text, "it is shown as it is"


@pytest.mark.parametrize("name", ["none", "No-Name", "%3Cscript%3E", "n" * 80])
async def test_a_webhook_that_does_not_exist_is_not_found(name: str, signed_in: SignedIn) -> None:
    operator = await signed_in()
    answer = await operator.get(path_of(name))
    assert answer.status_code in (400, 404)
    assert "<script>" not in answer.text
    for action in ("pause", "test", "rotate", "delete"):
        sent = {"form_key": await form_key(operator)}
        assert (await operator.post(path_of(name, action), data=sent)).status_code in (400, 404)


async def test_times_are_relative_with_the_exact_one_on_hover(mesh: Mesh, signed_in: SignedIn) -> None:
    await put(mesh, "billing")
    await mesh.webhooks.test("billing")
    page = await read(await signed_in(), BILLING)
    times = [one for one in page.tags("time")]
    assert len(times) >= 4
    for one in times:
        assert one["title"].endswith(" UTC")
        assert abs(datetime.fromisoformat(one["datetime"]) - datetime.now(UTC)) < timedelta(days=1)
