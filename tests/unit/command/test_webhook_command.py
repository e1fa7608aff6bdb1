"""The command `spawnmesh webhook`."""

import json
from datetime import UTC, timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import webhook_pb2 as pb
from spawnmesh.hook.v1 import webhook_service_pb2 as rpc
from spawnmesh_client.webhook_views import EVENT_TYPES
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.reasons import Reason

from tests.support.command.fake_mesh import FakeMesh, unset
from tests.support.command.webhooks import (
    EVENT_ID,
    SECRET,
    RecordedWebhooks,
    delivery_in,
    webhook_mesh,
    webhooks,
)

__all__ = ["unset", "webhook_mesh", "webhooks"]

URL = "https://example.com/hooks"


async def test_put_prints_the_secret_and_how_to_keep_it(
    webhook_mesh: FakeMesh, webhooks: RecordedWebhooks
) -> None:
    result = await webhook_mesh.run(
        *("webhook", "put", "a", "--url", URL, "--events", "run.ended, approval.requested"),
        *("--timeout", "10s", "--allow-unreachable"),
    )
    await webhook_mesh.run("webhook", "put", "a", "--url", URL, "--etag", "e1")
    document = await webhook_mesh.run("webhook", "put", "a", "--url", URL, "--json")

    assert (result.exit_code, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[:5] == [
        "webhook a",
        f"url {URL}",
        "events run.ended, approval.requested",
        "timeout 15s",
        "state active",
    ]
    assert lines[-2:] == [
        f"its messages are signed with {SECRET}",
        "keep it where the receiver finds it, and nowhere else",
    ]
    assert json.loads(document.stdout)["secret"] == SECRET
    written = [one for one in webhooks.requests if isinstance(one, rpc.UpdateWebhookRequest)]
    first, second, _ = written
    assert first.webhook == pb.Webhook(
        name="a", url=URL, timeout=Duration(seconds=10),
        event_types=[pb.WEBHOOK_EVENT_TYPE_RUN_ENDED, pb.WEBHOOK_EVENT_TYPE_APPROVAL_REQUESTED],
    )  # fmt: skip
    assert second.webhook == pb.Webhook(name="a", url=URL, timeout=Duration(seconds=15), etag="e1")
    assert {(one.allow_missing, *one.update_mask.paths) for one in written} == {(True, "*")}
    assert (first.allow_unreachable, second.allow_unreachable) == (True, False)


async def test_put_says_that_it_widens_a_webhook_to_all_types(
    webhook_mesh: FakeMesh, webhooks: RecordedWebhooks
) -> None:
    said = "it was sent run.ended, approval.requested alone, and is sent all types from now on\n"

    widened = await webhook_mesh.run("webhook", "put", "a", "--url", URL)
    document = await webhook_mesh.run("webhook", "put", "a", "--url", URL, "--json")
    narrowed = await webhook_mesh.run("webhook", "put", "a", "--url", URL, "--events", "run.ended")
    del webhooks.webhook.event_types[:]
    same = await webhook_mesh.run("webhook", "put", "a", "--url", URL)
    webhooks.is_missing = True
    created = await webhook_mesh.run("webhook", "put", "a", "--url", URL)

    assert said in widened.stdout
    assert json.loads(document.stdout)["secret"] == SECRET
    for other in (narrowed, same, created):
        assert (other.exit_code, "it was sent" in other.stdout) == (0, False)


async def test_update_changes_what_is_given(webhook_mesh: FakeMesh, webhooks: RecordedWebhooks) -> None:
    result = await webhook_mesh.run("webhook", "update", "a", "--events", "run.ended, session.ended")
    await webhook_mesh.run("webhook", "update", "a", "--all-events", "--etag", "e1")
    await webhook_mesh.run("webhook", "update", "a", "--url", URL, "--timeout", "9s", "--allow-unreachable")
    document = await webhook_mesh.run("webhook", "update", "a", "--timeout", "15s", "--json")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("webhook")
    assert SECRET not in result.stdout + document.stdout
    assert json.loads(document.stdout)["name"] == "a"
    changes = [(list(one.update_mask.paths), one.webhook) for one in webhooks.requests]
    types = [pb.WEBHOOK_EVENT_TYPE_RUN_ENDED, pb.WEBHOOK_EVENT_TYPE_SESSION_ENDED]
    assert changes == [
        (["event_types"], pb.Webhook(name="a", event_types=types)),
        (["event_types"], pb.Webhook(name="a", etag="e1")),
        (["url", "timeout"], pb.Webhook(name="a", url=URL, timeout=Duration(seconds=9))),
        (["timeout"], pb.Webhook(name="a", timeout=Duration(seconds=15))),
    ]
    assert [one.allow_unreachable for one in webhooks.requests] == [False, False, True, False]
    assert not any(one.allow_missing for one in webhooks.requests)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("put", "a"), "--url"),
        (("put", "a", "--url", URL, "--events", "run.end"), f"known are {', '.join(EVENT_TYPES)}"),
        (("put", "a", "--url", URL, "--events", "run.ended,"), "'' is no type of events"),
        (("put", "a", "--url", URL, "--events", "webhook.test"), "'webhook.test' is no type of events"),
        (("put", "a", "--url", URL, "--timeout", "31s"), "is a time from 1s to 30s, such as"),
        (("put", "a", "--url", URL, "--timeout", "0s"), "is a time from 1s to 30s"),
        (("update", "a"), "give --url, --events, --all-events or --timeout"),
        (("update", "a", "--events", "run.ended", "--all-events"), "not both"),
        (("update", "a", "--events", ""), "'' is no type of events"),
        (("update", "a", "--timeout", "31s"), "is a time from 1s to 30s"),
        (("rotate", "a", "--keep", "8d"), "is a time from 0s to 7d, such as 90s, 10m or 1h30m, not '8d'"),
        (("rotate", "a", "--keep", "1"), "is a time from 0s to 7d"),
        (("deliveries", "a", "--failed", "--state", "failed"), "not both"),
        (("deliveries", "a", "--state", "lost"), "known are pending, delivered, failed"),
        (("deliveries", "a", "--type", "run.end"), f"known are {', '.join(EVENT_TYPES)}, webhook.test"),
        (("deliveries", "a", "--since", "yesterday"), "is a time from"),
        (("deliveries", "a", "--limit", "0"), "--limit"),
        (("replay", "a"), "give the ids of events, or --failed-since"),
        (("replay", "a", EVENT_ID, "--failed-since", "24h"), "give the ids of events, or --failed-since"),
    ],
)
async def test_wrong_option_is_refused_before_any_call(
    webhook_mesh: FakeMesh, webhooks: RecordedWebhooks, arguments: tuple[str, ...], said: str
) -> None:
    result = await webhook_mesh.run("webhook", *arguments)

    assert (result.exit_code, said in " ".join(result.stderr.replace("│", "").split())) == (2, True)
    assert webhooks.requests == []


async def test_list_has_a_row_for_each_webhook(webhook_mesh: FakeMesh, webhooks: RecordedWebhooks) -> None:
    webhooks.webhook.paused, webhooks.webhook.pause_reason = True, "it answered 410"
    del webhooks.webhook.event_types[:]

    result = await webhook_mesh.run("webhook", "list")
    document = await webhook_mesh.run("webhook", "list", "--json")

    _, first, second = (" ".join(line.split()) for line in result.stdout.splitlines())
    assert first == f"a paused: it answered 410 all {URL}"
    assert second == f"b active run.ended, approval.requested {URL}"
    assert [one["name"] for one in json.loads(document.stdout)["webhooks"]] == ["a", "b"]


@pytest.mark.parametrize("command", ["get", "pause", "resume"])
async def test_webhook_is_shown_as_it_is_now(
    webhook_mesh: FakeMesh, webhooks: RecordedWebhooks, command: str
) -> None:
    webhooks.webhook.failing_since_time.FromSeconds(1)
    webhooks.webhook.previous_secret_expire_time.FromSeconds(1)

    result = await webhook_mesh.run("webhook", command, "a")
    document = await webhook_mesh.run("webhook", command, "a", "--json")

    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert any(line.startswith("state failing since 19") for line in lines)
    assert any(line.startswith("previous secret signs too until 19") for line in lines)
    assert lines[-1] == "etag e1"
    assert json.loads(document.stdout)["event_types"] == [
        "WEBHOOK_EVENT_TYPE_RUN_ENDED",
        "WEBHOOK_EVENT_TYPE_APPROVAL_REQUESTED",
    ]
    names = {(type(one).__name__, one.name) for one in webhooks.requests}
    assert names == {(f"{command.title()}WebhookRequest", "a")}


async def test_delete_says_nothing_but_in_json(webhook_mesh: FakeMesh, webhooks: RecordedWebhooks) -> None:
    result = await webhook_mesh.run("webhook", "delete", "a", "--etag", "e1")
    document = await webhook_mesh.run("webhook", "delete", "a", "--json")

    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(document.stdout) == {"deleted": "a"}
    assert [one.etag for one in webhooks.requests] == ["e1", ""]


async def test_rotate_prints_the_secret_and_how_long_the_other_one_signs(
    webhook_mesh: FakeMesh, webhooks: RecordedWebhooks
) -> None:
    webhooks.webhook.previous_secret_expire_time.FromSeconds(1)
    result = await webhook_mesh.run("webhook", "rotate", "a", "--request-id", "r1")
    webhooks.webhook.ClearField("previous_secret_expire_time")
    at_once = await webhook_mesh.run("webhook", "rotate", "a", "--keep", "0s")
    document = await webhook_mesh.run("webhook", "rotate", "a", "--json")

    signed, keep, until = result.stdout.splitlines()
    assert (signed, keep.startswith("keep it")) == (f"its messages are signed with {SECRET}", True)
    assert until.startswith("the previous secret signs too until 19")
    assert at_once.stdout.splitlines() == [signed, keep]
    assert json.loads(document.stdout)["secret"] == SECRET
    first, second, third = webhooks.requests
    assert (first.request_id, first.keep_previous.seconds) == ("r1", 86_400)
    assert (second.HasField("keep_previous"), second.keep_previous) == (True, Duration())
    assert len({first.request_id, second.request_id, third.request_id, ""}) == 4


async def test_test_prints_the_status_and_the_latency(
    webhook_mesh: FakeMesh, webhooks: RecordedWebhooks
) -> None:
    webhooks.pages = [[delivery_in(pb.WEBHOOK_DELIVERY_STATE_DELIVERED, (204, ""))]]
    result = await webhook_mesh.run("webhook", "test", "a")
    webhooks.pages = [[delivery_in(pb.WEBHOOK_DELIVERY_STATE_FAILED, (0, "no connection"))]]
    failed = await webhook_mesh.run("webhook", "test", "a")
    document = await webhook_mesh.run("webhook", "test", "a", "--json")

    assert (result.exit_code, result.stdout) == (0, "delivered: HTTP status 204, after 42.0 ms\n")
    assert (failed.exit_code, failed.stdout) == (1, "failed: no connection, after 42.0 ms\n")
    assert document.exit_code == 1
    assert json.loads(document.stdout)["delivery"]["attempts"][0]["error"] == "no connection"


async def test_deliveries_have_a_row_each_with_the_last_outcome(
    webhook_mesh: FakeMesh, webhooks: RecordedWebhooks
) -> None:
    webhooks.pages = [
        [],
        [delivery_in(pb.WEBHOOK_DELIVERY_STATE_FAILED, (200, ""), (500, "HTTP status 500"))],
        [
            delivery_in(pb.WEBHOOK_DELIVERY_STATE_DELIVERED, (200, "")),
            delivery_in(pb.WEBHOOK_DELIVERY_STATE_PENDING),
        ],
        [delivery_in(pb.WEBHOOK_DELIVERY_STATE_FAILED)],
        [delivery_in(pb.WEBHOOK_DELIVERY_STATE_PENDING)],
    ]
    before = utc_now()

    result = await webhook_mesh.run("webhook", "deliveries", "a", "--limit", "4")
    document = await webhook_mesh.run(
        *("webhook", "deliveries", "a", "--failed", "--type", "run.ended", "--session", "ses_1"),
        *("--since", "24h", "--json"),
    )

    header, first, second, third, fourth = (" ".join(line.split()) for line in result.stdout.splitlines())
    assert header == "event time type state attempts last"
    assert first.startswith(f"{EVENT_ID} 19")
    assert first.endswith("run.ended failed 2 HTTP status 500")
    assert second.endswith("run.ended delivered 1 HTTP status 200")
    assert third.endswith("run.ended pending 0")
    assert fourth.endswith("run.ended failed 0 given up: the webhook failed for a day")
    assert len(json.loads(document.stdout)["deliveries"]) == 5
    plain, *_, filtered = webhooks.requests
    assert (plain.page_size, plain.state, plain.HasField("start_time")) == (4, 0, False)
    assert (filtered.state, filtered.event_type) == (
        pb.WEBHOOK_DELIVERY_STATE_FAILED,
        pb.WEBHOOK_EVENT_TYPE_RUN_ENDED,
    )
    assert filtered.session_id == "ses_1"
    assert before <= filtered.start_time.ToDatetime(UTC) + timedelta(days=1) <= utc_now()


async def test_replay_goes_on_while_there_are_more(
    webhook_mesh: FakeMesh, webhooks: RecordedWebhooks
) -> None:
    webhooks.replays = [1000, 7]
    result = await webhook_mesh.run("webhook", "replay", "a", "--failed-since", "24h")
    webhooks.replays = [2]
    document = await webhook_mesh.run("webhook", "replay", "a", EVENT_ID, "evt_2", "--json")

    assert (result.exit_code, result.stdout) == (0, "messages that are sent again: 1007\n")
    assert json.loads(document.stdout) == {"replayed_count": 2}
    first, second, third = webhooks.requests
    assert (first, first.HasField("failed_since_time")) == (second, True)
    assert list(third.events.event_ids) == [EVENT_ID, "evt_2"]


@pytest.mark.parametrize(
    ("refusal", "advice"),
    [
        (not_found("webhook", "a"), "`spawnmesh webhook list` lists what there is"),
        (MeshError(Reason.WEBHOOK_COUNT_EXCEEDED, "32"), "`spawnmesh webhook list` lists them"),
        (
            MeshError(Reason.ENDPOINT_NOT_REACHED, "no"),
            "with --allow-unreachable, an address at which nothing answers is accepted",
        ),
    ],
)
async def test_refusal_says_what_to_do(
    webhook_mesh: FakeMesh, webhooks: RecordedWebhooks, refusal: MeshError, advice: str
) -> None:
    webhooks.refusal = refusal

    result = await webhook_mesh.run("webhook", "put", "a", "--url", URL)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(f". {advice}\n")
