"""Webhooks of the mesh in memory, as the tests of a program use them."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from spawnmesh_client import (
    Agent,
    Attachment,
    Conflict,
    InvalidRequest,
    NotFound,
    Reason,
    WebhookDelivery,
    WebhookDeliveryState,
    sync,
)
from spawnmesh_client.testing import FakeMesh

URL = "https://example.com/hooks"


async def deliveries_of(mesh: FakeMesh, **conditions: str) -> list[WebhookDelivery]:
    return [one async for one in mesh.webhooks.deliveries("a", **conditions)]


async def test_webhook_is_put_read_changed_and_deleted() -> None:
    mesh = FakeMesh()
    webhook, secret = await mesh.webhooks.put("a", url=URL)
    again, same = await mesh.webhooks.put("a", url=URL, timeout=15)
    assert (webhook.url, webhook.event_types, webhook.timeout) == (URL, (), timedelta(seconds=15))
    assert (again, same) == (webhook, secret)
    assert secret.startswith("whsec_")
    types = ["session.ended", "run.ended"]
    changed, _ = await mesh.webhooks.update("a", event_types=types, etag=webhook.etag)
    assert (changed.url, sorted(changed.event_types)) == (URL, sorted(types))
    with pytest.raises(Conflict) as differs:
        await mesh.webhooks.update("a", timeout=1, etag=webhook.etag)
    assert (differs.value.reason, differs.value.facts["etag"]) == (Reason.ETAG_DIFFERS, changed.etag)
    _, other = await mesh.webhooks.put("b", url=URL)
    assert other != secret
    assert [one.name for one in await mesh.webhooks.list()] == ["a", "b"]
    with pytest.raises(Conflict):
        await mesh.webhooks.delete("a", etag=webhook.etag)
    await mesh.webhooks.delete("a", etag=changed.etag)
    await mesh.webhooks.delete("a")
    with pytest.raises(NotFound):
        await mesh.webhooks.get("a")
    with pytest.raises(NotFound):
        await mesh.webhooks.update("a", url=URL)
    with pytest.raises(NotFound):
        await mesh.webhooks.put("a", url=URL, etag="e1")
    assert (await mesh.webhooks.put("a", url="http://127.0.0.1:9/"))[0].url == "http://127.0.0.1:9/"
    for url in ("", "https://", "https://[", "http://example.com", "ftp://example.com"):
        with pytest.raises(InvalidRequest):
            await mesh.webhooks.put("a", url=url)


async def test_runs_and_sessions_appear_as_deliveries() -> None:
    mesh = FakeMesh()
    await mesh.run("Before there was a webhook.")
    await mesh.webhooks.put("a", url=URL)
    mesh.publishes(Attachment("a.txt", b"abc"))
    session = await mesh.spawn("Work.")
    found = await deliveries_of(mesh)
    ended, run_ended, published, started = sorted(found, key=order, reverse=True)
    assert {one.session_id for one in found} == {session.session_id}
    assert [one.event_type for one in (ended, run_ended, published, started)] == ORDER[::-1]
    assert {one.state for one in found} == {WebhookDeliveryState.DELIVERED}
    assert [one.status_code for one in run_ended.attempts] == [200]
    body = json.loads(run_ended.body_json)
    assert (body["type"], body["data"]["run_id"]) == ("run.ended", run_ended.run_id)
    assert body["data"]["outcome"] == "SUCCEEDED"
    assert datetime.fromisoformat(body["timestamp"]) == run_ended.event_time
    data = json.loads(published.body_json)["data"]
    assert (data["file_count"], data["total_bytes"]) == (1, 3)
    assert [one.event_id for one in await deliveries_of(mesh)] == [one.event_id for one in found]


ORDER = ["session.started", "files.published", "run.ended", "session.ended"]


def order(delivery: WebhookDelivery) -> int:
    return ORDER.index(delivery.event_type)


async def test_data_is_that_of_a_mesh() -> None:
    mesh = FakeMesh()
    await mesh.agents.put(Agent("clerk"))
    await mesh.webhooks.put("a", url=URL)
    mesh.publishes(Attachment("a.txt", b"abc"))
    parent = await mesh.spawn("Work.", agent="clerk")
    child = await mesh.spawn("Help.", parent=parent.session_id)
    found = await deliveries_of(mesh, session_id=parent.session_id)
    bodies = {one.event_type: json.loads(one.body_json) for one in found}
    [run_id] = {one.run_id for one in found} - {""}
    subject = {"session_id": parent.session_id, "agent_id": "clerk"}
    of_run = {**subject, "run_id": run_id}
    [published] = [one async for one in parent.outputs()]
    assert {name: body["data"] for name, body in bodies.items()} == {
        "session.started": subject,
        "files.published": {**of_run, "set_id": published.set_id, "file_count": 1, "total_bytes": 3},
        "run.ended": {**of_run, "outcome": "SUCCEEDED"},
        "session.ended": subject,
    }
    assert {len(body["timestamp"]) for body in bodies.values()} == {len("2026-11-30T03:00:00.000000Z")}
    [started] = await deliveries_of(mesh, session_id=child.session_id, event_type="session.started")
    data = json.loads(started.body_json)["data"]
    assert data == {
        "session_id": child.session_id, "agent_id": "default", "parent_session_id": parent.session_id
    }  # fmt: skip


async def test_deliveries_are_those_that_fulfil_the_conditions() -> None:
    mesh = FakeMesh()
    await mesh.webhooks.put("a", url=URL, event_types=["run.ended"])
    first, second = await mesh.spawn("One."), await mesh.spawn("Two.")
    assert {one.session_id for one in await deliveries_of(mesh)} == {first.session_id, second.session_id}
    [one] = await deliveries_of(mesh, session_id=first.session_id, state="DELIVERED", event_type="run.ended")
    assert one.session_id == first.session_id
    assert await deliveries_of(mesh, state="FAILED") == []
    assert await deliveries_of(mesh, event_type="session.ended") == []
    later = datetime.now(UTC) + timedelta(hours=1)
    assert [one async for one in mesh.webhooks.deliveries("a", since=later)] == []
    assert len([one async for one in mesh.webhooks.deliveries("a", since=timedelta(hours=1))]) == 2
    old = later - timedelta(days=1)
    assert [one async for one in mesh.webhooks.deliveries("a", before=old)] == []


async def test_messages_of_a_paused_webhook_wait_until_it_is_resumed() -> None:
    mesh = FakeMesh()
    await mesh.webhooks.put("a", url=URL, event_types=["run.ended"])
    await mesh.spawn("One.")
    assert (await mesh.webhooks.pause("a")).paused
    await mesh.spawn("Two.")
    states = [one.state for one in await deliveries_of(mesh)]
    assert sorted(states) == ["DELIVERED", "PENDING"]
    [waiting] = await deliveries_of(mesh, state="PENDING")
    assert (waiting.attempts, waiting.end_time) == ((), None)
    assert await mesh.webhooks.replay("a", [waiting.event_id]) == 0
    assert not (await mesh.webhooks.resume("a")).paused
    assert await deliveries_of(mesh, state="PENDING") == []


async def test_messages_are_replayed_and_tests_are_in_the_log() -> None:
    mesh = FakeMesh()
    await mesh.webhooks.put("a", url=URL, event_types=["run.ended"])
    await mesh.spawn("One.")
    [one] = await deliveries_of(mesh)
    assert await mesh.webhooks.replay("a", [one.event_id]) == 1
    [again] = await deliveries_of(mesh)
    assert (again.event_id, again.attempt_count, again.body_json) == (one.event_id, 2, one.body_json)
    with pytest.raises(NotFound):
        await mesh.webhooks.replay("a", [one.event_id, "evt_other"])
    assert await mesh.webhooks.replay_failed("a", since=timedelta(days=1)) == 0
    test = await mesh.webhooks.test("a")
    assert (test.event_type, test.state) == ("webhook.test", "DELIVERED")
    assert await mesh.webhooks.replay("a", [test.event_id, one.event_id]) == 1, "a test is sent once"
    [in_log] = await deliveries_of(mesh, event_type="webhook.test")
    assert in_log == test


async def test_secret_is_rotated_once_for_each_request_id() -> None:
    mesh = FakeMesh()
    _, first = await mesh.webhooks.put("a", url=URL)
    rotated, second = await mesh.webhooks.rotate_secret("a", request_id="r1")
    assert rotated.previous_secret_expire_time is not None
    assert (await mesh.webhooks.rotate_secret("a", request_id="r1"))[1] == second
    at_once, third = await mesh.webhooks.rotate_secret("a", keep_previous=0)
    assert at_once.previous_secret_expire_time is None
    assert len({first, second, third}) == 3
    assert (await mesh.webhooks.put("a", url=URL))[1] == third


def test_blocking_methods_do_the_same() -> None:
    with sync.blocking(FakeMesh()) as mesh:
        mesh.webhooks.put("a", url=URL)
        mesh.run("Work.")
        types = [one.event_type for one in mesh.webhooks.deliveries("a", event_type="run.ended")]
        assert types == ["run.ended"]
        assert [one.name for one in mesh.webhooks.list()] == ["a"]
        mesh.webhooks.delete("a")
