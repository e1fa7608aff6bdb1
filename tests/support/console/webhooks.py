"""Webhooks of a tenant of a test, as the console shows them."""

from collections.abc import Sequence

import httpx2
from spawnmesh_client.client import Mesh
from spawnmesh_client.webhook_views import WebhookDelivery

from tests.support.console.html import Page, read_html
from tests.support.console.visitors import read
from tests.support.waiting import eventually

DEAD_ADDRESS = "https://127.0.0.1:1/hooks"
ACTIONS = ("change", "pause", "resume", "test", "rotate", "replay", "delete")
"""The forms of a webhook, by the ends of their paths."""


def path_of(name: str, action: str = "") -> str:
    """Return the path of the page, or of a form of it."""
    return f"/webhooks/{name}/{action}" if action else f"/webhooks/{name}"


async def put(mesh: Mesh, name: str, url: str = DEAD_ADDRESS, *event_types: str) -> str:
    """Create a webhook, and return its secret."""
    _, secret = await mesh.webhooks.put(name, url=url, event_types=event_types, allow_unreachable=True)
    return secret


async def log_of(mesh: Mesh, name: str) -> list[WebhookDelivery]:
    """Return the messages of the webhook, newest first."""
    return [one async for one in mesh.webhooks.deliveries(name)]


async def delivery_in(mesh: Mesh, name: str, state: str) -> WebhookDelivery:
    """Wait until a message of the webhook is in the state and has an attempt, and return it."""

    async def found() -> WebhookDelivery | None:
        log = await log_of(mesh, name)
        return next((one for one in log if one.state == state and one.attempts), None)

    return await eventually(found)


async def press(
    client: httpx2.AsyncClient, name: str, action: str, **changes: str | Sequence[str]
) -> httpx2.Response:
    """Send the form of the webhook's page, with other values for some fields."""
    form = (await read(client, path_of(name))).form(path_of(name, action))
    return await client.post(form.action, data={**form.fields, **changes})


def secrets_in(page: Page) -> list[str]:
    """Return the secrets that the page shows."""
    return [word for word in page.text.split() if word.startswith("whsec_")]


def page_of(answer: httpx2.Response, status: int = 200) -> Page:
    """Return the page that answers a form."""
    assert answer.status_code == status, answer.text[:2000]
    return read_html(answer.text)
