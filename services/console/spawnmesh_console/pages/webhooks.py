"""`/webhooks` and `/webhooks/{name}`: webhooks with what they were sent, and the forms that create,
change, pause, resume, test, rotate, replay and delete.
"""

from collections.abc import Awaitable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

from spawnmesh_client.webhook_views import Webhook, WebhookDelivery
from spawnmesh_core.errors import InvalidRequest, MeshError, NotFound
from spawnmesh_core.reasons import Reason
from starlette.datastructures import FormData
from starlette.responses import Response

from spawnmesh_console.clients.webhook_deliveries import WebhookLogPage, webhook_log_page
from spawnmesh_console.domain import webhooks as words
from spawnmesh_console.domain.plugins import is_session
from spawnmesh_console.domain.readable_json import readable_json
from spawnmesh_console.domain.states import ShownState
from spawnmesh_console.domain.webhooks import SentWebhook, WrongWebhook
from spawnmesh_console.web.failures import form_refusal
from spawnmesh_console.web.visit import Visit, field_text, see_other

_REPLAYED_SINCE = timedelta(days=7)
"""A message is given up a day after its event, so the last day has almost none."""
_HAS_NAME = "There is another webhook of this name. Choose another name, or change that webhook."
_UNCHANGED = "The webhook is like this already. Nothing was changed."
_CHANGED_BEFORE = "The webhook was changed while you looked. It is as shown now: do it again."
_NOT_REACHED = "start what answers there first, or say in the form that nothing does yet."
_NO_MESSAGE = "The form names no message. Press one of the buttons."
_NOTICES = {
    "changed": "The webhook was changed.",
    "paused": "The webhook is paused. Its messages wait.",
    "resumed": "The webhook is sent what waits, and what comes.",
    "deleted": "The webhook was deleted.",
}
Refusal = WrongWebhook | MeshError


async def list_webhooks(visit: Visit) -> Response:
    """Show the webhooks, and the form that creates one."""
    return await _list(visit)


async def create(visit: Visit) -> Response:
    """Create the webhook of the form, and show its secret. A refusal is shown beside the form."""
    fields = await visit.form()
    sent = _sent(fields, field_text(fields, "name"))
    try:
        sent.check()
        await _check_name(visit, sent)
        _, secret = await visit.mesh.webhooks.put(
            sent.name,
            url=sent.url,
            event_types=sent.event_types,
            timeout=sent.time,
            allow_unreachable=sent.is_unreachable_allowed,
        )
    except (WrongWebhook, MeshError) as error:
        return await _list(visit, sent, error)
    return visit.render("webhook_secret.html", name=sent.name, secret=secret, is_new=True)


async def show_webhook(visit: Visit) -> Response:
    """Show one webhook. `part=deliveries` returns its log alone, to keep it up to date."""
    return await _page(visit)


async def change(visit: Visit) -> Response:
    """Change the fields that differ. A refusal is shown beside the form."""
    fields = await visit.form()
    webhook = await visit.mesh.webhooks.get(visit.path_part("name"))
    sent = _sent(fields, webhook.name)
    try:
        sent.check()
        changed = sent.differs_from(_as_sent(webhook))
        if not changed:
            raise WrongWebhook(_UNCHANGED)
        await visit.mesh.webhooks.update(
            webhook.name,
            url=sent.url if "url" in changed else ...,
            event_types=sent.event_types if "event_types" in changed else ...,
            timeout=sent.time if "timeout" in changed else ...,
            allow_unreachable=sent.is_unreachable_allowed,
            etag=field_text(fields, "etag"),
        )
    except (WrongWebhook, MeshError) as error:
        return await _page(visit, error, sent)
    return _see(webhook.name, done="changed")


async def pause(visit: Visit) -> Response:
    """Pause the webhook, and show it."""
    await visit.form()
    return await _changed(visit, visit.mesh.webhooks.pause(visit.path_part("name")), "paused")


async def resume(visit: Visit) -> Response:
    """Resume the webhook, and show it."""
    await visit.form()
    return await _changed(visit, visit.mesh.webhooks.resume(visit.path_part("name")), "resumed")


async def delete(visit: Visit) -> Response:
    """Delete the webhook, and show the others."""
    fields = await visit.form()
    webhook = await visit.mesh.webhooks.get(visit.path_part("name"))
    try:
        await visit.mesh.webhooks.delete(webhook.name, etag=field_text(fields, "etag"))
    except MeshError as error:
        return await _page(visit, error)
    return see_other("/webhooks", {"done": "deleted"})


async def send_test(visit: Visit) -> Response:
    """Send a test, and show its outcome above the log."""
    await visit.form()
    try:
        delivery = await visit.mesh.webhooks.test(visit.path_part("name"))
    except MeshError as error:
        return await _page(visit, error)
    return _see(visit.path_part("name"), tested=delivery.event_id)


async def rotate(visit: Visit) -> Response:
    """Give the webhook another secret, and show it. The same form returns the same one."""
    fields = await visit.form()
    try:
        kept = words.time_kept(field_text(fields, "keep"))
        webhook, secret = await visit.mesh.webhooks.rotate_secret(
            visit.path_part("name"), keep_previous=kept, request_id=field_text(fields, "request_id") or None
        )
    except (WrongWebhook, MeshError) as error:
        return await _page(visit, error)
    return visit.render(
        "webhook_secret.html",
        name=webhook.name,
        secret=secret,
        is_new=False,
        previous_expire_time=webhook.previous_secret_expire_time,
    )


async def replay(visit: Visit) -> Response:
    """Send the message of the form again, or those of the last week that were given up."""
    fields = await visit.form()
    webhooks, event_id = visit.mesh.webhooks, field_text(fields, "event_id")
    try:
        if event_id:
            count = await webhooks.replay(visit.path_part("name"), [event_id])
        elif field_text(fields, "failed"):
            count = await webhooks.replay_failed(visit.path_part("name"), since=_REPLAYED_SINCE)
        else:
            raise WrongWebhook(_NO_MESSAGE)
    except (WrongWebhook, MeshError) as error:
        return await _page(visit, error)
    return _see(visit.path_part("name"), replayed=str(count))


async def _changed(visit: Visit, change: Awaitable[Webhook], done: str) -> Response:
    try:
        webhook = await change
    except MeshError as error:
        return await _page(visit, error)
    return _see(webhook.name, done=done)


async def _check_name(visit: Visit, sent: SentWebhook) -> None:
    """Raise WrongWebhook if a webhook with other content has the name: a form that is sent twice
    finds its own.
    """
    try:
        webhook = await visit.mesh.webhooks.get(sent.name)
    except NotFound:
        return
    if sent.differs_from(_as_sent(webhook)):
        raise WrongWebhook(_HAS_NAME)


async def _list(visit: Visit, sent: SentWebhook | None = None, refusal: Refusal | None = None) -> Response:
    status, problem = _refused(refusal)
    return visit.render(
        "webhooks.html",
        status=status,
        webhooks=await visit.mesh.webhooks.list(),
        sent=sent or SentWebhook(),
        problem=problem,
        notice=_NOTICES.get(visit.text("done"), ""),
        **_words(visit),
    )


async def _page(visit: Visit, refusal: Refusal | None = None, sent: SentWebhook | None = None) -> Response:
    status, problem = _refused(refusal)
    state = visit.text("state") if visit.text("state") in words.DELIVERY_STATES else ""
    event_type = visit.text("type") if visit.text("type") in words.LOGGED_TYPES else ""
    token = visit.text("page_token")
    log_problem, page = "", WebhookLogPage([], "")
    try:
        page = await webhook_log_page(
            visit.mesh, visit.path_part("name"), state=state, event_type=event_type, page_token=token
        )
    except InvalidRequest as error:
        status, log_problem = 400, error.message
    chosen = {key: value for key, value in (("state", state), ("type", event_type)) if value}
    values: dict[str, Any] = {
        "name": visit.path_part("name"),
        "page": page,
        "state": state,
        "event_type": event_type,
        "log_problem": log_problem,
        "is_first": not token,
        "newest_query": urlencode(chosen),
        "next_query": urlencode({**chosen, "page_token": page.next_page_token}),
        "rows_query": urlencode({**chosen, "part": "deliveries"}),
        "is_session": is_session,
        "readable_json": readable_json,
        **_words(visit),
    }
    if visit.text("part") == "deliveries":
        return visit.render("webhook_deliveries.html", **values)
    webhook = await visit.mesh.webhooks.get(visit.path_part("name"))
    return visit.render(
        "webhook.html",
        status=status,
        webhook=webhook,
        sent=sent or _as_sent(webhook),
        is_sent=sent is not None,
        problem=problem,
        notice=_notice(visit),
        tested=_tested(visit, page),
        request_id=uuid4().hex,
        **values,
    )


def _refused(refusal: Refusal | None) -> tuple[int, str]:
    """Return the status of the page, and the sentence about the refusal. Raises the refusals that
    have a page of their own.
    """
    if refusal is None:
        return 200, ""
    if isinstance(refusal, WrongWebhook):
        return 400, str(refusal)
    if refusal.reason is Reason.ENDPOINT_NOT_REACHED:
        return 409, f"{refusal.message.partition(';')[0]}; {_NOT_REACHED}"
    return form_refusal(refusal, _CHANGED_BEFORE)


def _notice(visit: Visit) -> str:
    if visit.text("replayed"):
        return words.replay_notice(visit.number("replayed"))
    return _NOTICES.get(visit.text("done"), "")


def _tested(visit: Visit, page: WebhookLogPage) -> WebhookDelivery | None:
    """Return the test that was sent just before, from the log."""
    event_id = visit.text("tested")
    return next((one for one in page.deliveries if event_id and one.event_id == event_id), None)


def _words(visit: Visit) -> dict[str, Any]:
    may = partial(visit.person.may_call, "spawnmesh.hook.v1.WebhookService")
    return {"words": words, "webhook_state": _state, "may": may}


def _state(webhook: Webhook) -> ShownState:
    return words.webhook_state(
        is_paused=webhook.paused,
        pause_reason=webhook.pause_reason,
        is_failing=webhook.failing_since_time is not None,
    )


def _as_sent(webhook: Webhook) -> SentWebhook:
    return SentWebhook.for_webhook(webhook.name, webhook.url, webhook.event_types, webhook.timeout)


def _sent(fields: FormData, name: str) -> SentWebhook:
    types = dict.fromkeys(one for one in fields.getlist("type") if isinstance(one, str))
    is_allowed = bool(field_text(fields, "unreachable"))
    return SentWebhook(
        name, field_text(fields, "url"), tuple(types), field_text(fields, "timeout"), is_allowed
    )


def _see(name: str, **query: str) -> Response:
    return see_other(f"/webhooks/{quote(name, safe='')}", query)
