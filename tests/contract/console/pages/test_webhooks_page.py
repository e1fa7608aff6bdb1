"""`/webhooks`: the list, the form that creates one, and what a role may do."""

import httpx2
import pytest
from spawnmesh_client.client import Mesh
from spawnmesh_client.webhooks import verify
from spawnmesh_console.domain.webhooks import EVENT_TYPES
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.html import Page
from tests.support.console.receivers import Receivers
from tests.support.console.running_console import RunningConsole
from tests.support.console.visitors import SignedIn, form_key, open_tenant, read
from tests.support.console.webhooks import (
    ACTIONS,
    DEAD_ADDRESS,
    page_of,
    path_of,
    press,
    put,
    secrets_in,
)
from tests.support.waiting import eventually

LIST = "/webhooks"
OTHER_ROLES = [ClientRole.READER, ClientRole.USER]


async def create(
    client: httpx2.AsyncClient, name: str, url: str, *types: str, **changes: str
) -> httpx2.Response:
    """Send the form that creates a webhook."""
    fields = (await read(client, LIST)).form(LIST).fields
    given = {"name": name, "url": url, "type": types, "unreachable": "yes", **changes}
    return await client.post(LIST, data={**fields, **given})


def actions_of(page: Page) -> set[str]:
    """Return the ends of the paths of all forms of webhooks on the page."""
    return {
        form.action.rpartition("/")[2]
        for form in page.forms
        if form.action.startswith("/webhooks") and form.method == "post"
    }


async def test_without_webhooks_the_page_says_what_they_are(signed_in: SignedIn) -> None:
    page = await read(await signed_in(), LIST)
    assert "There are no webhooks." in page.text
    assert "spawnmesh webhook put" in page.text
    form = page.form(LIST)
    assert {*form.fields} == {"form_key", "name", "url", "timeout"}, "no type is chosen"
    boxes = [one["value"] for one in page.tags("input") if one.get("name") == "type"]
    assert boxes == [*EVENT_TYPES]
    assert LIST in page.links, "the navigation leads here"


async def test_the_form_creates_a_webhook_and_shows_its_secret_once(
    mesh: Mesh, signed_in: SignedIn, receivers: Receivers
) -> None:
    operator, receiver = await signed_in(), receivers.open()
    answer = await create(
        operator, "billing", receiver.url, "run.ended", "budget.reached", unreachable="", timeout="5"
    )
    (secret,) = secrets_in(page_of(answer))
    assert "location" not in answer.headers
    webhook = await mesh.webhooks.get("billing")
    assert (webhook.url, webhook.event_types) == (receiver.url, ("run.ended", "budget.reached"))
    assert webhook.timeout is not None
    assert webhook.timeout.total_seconds() == 5

    await press(operator, "billing", "test")
    ((headers, body),) = receiver.requests
    assert verify(secret, headers, body).type == "webhook.test"
    for path in (LIST, path_of("billing"), path_of("billing") + "?part=deliveries"):
        answer = await operator.get(path)
        assert "whsec_" not in answer.text
        assert secret not in answer.text
    repeated = await create(
        operator, "billing", receiver.url, "budget.reached", "run.ended", unreachable="", timeout="5"
    )
    assert secrets_in(page_of(repeated)) == [secret], "a form that is sent twice finds its own"


async def test_without_a_choice_it_is_sent_all_types(mesh: Mesh, signed_in: SignedIn) -> None:
    operator = await signed_in()
    page_of(await create(operator, "all", DEAD_ADDRESS))
    assert (await mesh.webhooks.get("all")).event_types == ()
    page = await read(operator, LIST)
    assert f"sending all {DEAD_ADDRESS} all types" in page.text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "Big Name"}, "Write a name"),
        ({"name": ""}, "Write a name"),
        ({"name": "n" * 64}, "Write a name"),
        ({"url": "javascript:alert(1)"}, "Write an address"),
        ({"url": "http://192.0.2.1/"}, "must be https"),
        ({"url": "https://"}, "Write an address"),
        ({"url": "https://[::1"}, "Write an address"),
        ({"url": f"https://hooks.example.com/{'x' * 512}"}, "at most 512 bytes"),
        ({"url": "https://hooks.example.com/\u202eform"}, "must be https://host"),
        ({"url": "https://169.254.169.254/latest"}, "leads to an address that"),
        ({"url": DEAD_ADDRESS, "unreachable": ""}, "or say in the form that nothing does yet"),
        ({"timeout": "31"}, "Write the time-out"),
        ({"timeout": "soon"}, "Write the time-out"),
        ({"type": "no.type"}, "Choose types"),
        ({"type": "webhook.test"}, "Choose types"),
    ],
)
async def test_a_refused_form_keeps_its_fields_and_creates_nothing(
    changes: dict[str, str], problem: str, mesh: Mesh, signed_in: SignedIn
) -> None:
    operator = await signed_in()
    given = {"name": "billing", "url": DEAD_ADDRESS, **changes}
    answer = await create(operator, given.pop("name"), given.pop("url"), **given)
    page = page_of(answer, answer.status_code)
    assert 400 <= answer.status_code < 500
    assert len([one for one in page.tags("p") if one.get("role") == "alert"]) == 1
    assert problem in page.text
    kept = page.form(LIST).fields
    assert kept["name"] == changes.get("name", "billing")
    assert kept["url"] == changes.get("url", DEAD_ADDRESS)
    assert await mesh.webhooks.list() == []


async def test_the_name_of_another_webhook_changes_nothing(mesh: Mesh, signed_in: SignedIn) -> None:
    await put(mesh, "billing")
    before = await mesh.webhooks.get("billing")
    answer = await create(await signed_in(), "billing", f"{DEAD_ADDRESS}/other")
    page = page_of(answer, 400)
    assert "There is another webhook of this name." in page.text
    assert not secrets_in(page)
    assert await mesh.webhooks.get("billing") == before


async def test_a_tenant_has_a_limited_number_of_webhooks(mesh: Mesh, signed_in: SignedIn) -> None:
    for number in range(32):
        await put(mesh, f"hook-{number}")
    answer = await create(await signed_in(), "one-more", DEAD_ADDRESS)
    assert "32 are allowed" in page_of(answer, answer.status_code).text
    assert answer.status_code >= 400
    assert len(await mesh.webhooks.list()) == 32


async def test_the_list_shows_the_states(mesh: Mesh, signed_in: SignedIn, receivers: Receivers) -> None:
    gone = receivers.open()
    gone.status = 410
    await put(mesh, "gone", gone.url, "session.ended")
    await put(mesh, "failing", DEAD_ADDRESS, "session.ended")
    await put(mesh, "paused")
    await put(mesh, "quiet", DEAD_ADDRESS, "files.published")
    await mesh.webhooks.pause("paused")
    operator = await signed_in()
    session = await mesh.spawn("Say hello.")
    await session.result(60)

    def icons_of(page: Page) -> set[str]:
        return {one["class"].removeprefix("icon icon-") for one in page.tags("svg")}

    async def both_have_failed() -> Page | None:
        page = await read(operator, LIST)
        return page if icons_of(page) >= {"warning", "failed"} else None

    page = await eventually(both_have_failed)
    assert "failing since " in page.text
    assert "paused by the mesh it answered that it is gone (HTTP status 410)" in page.text
    assert icons_of(page) >= {"warning", "failed", "stopped", "succeeded"}, (
        "each state has a shape of its own"
    )
    failing = (await read(operator, path_of("failing"))).text
    assert "Every message since then has failed. One is sent after pauses of up to five minutes" in failing
    assert "Try now" in failing
    gone_now = (await read(operator, path_of("gone"))).text
    assert "Every message since then has failed." in gone_now
    assert "One is sent after pauses" not in gone_now, "it is paused"


@pytest.mark.parametrize("role", OTHER_ROLES)
async def test_other_roles_see_no_action_and_are_refused(
    role: ClientRole, mesh: Mesh, signed_in: SignedIn
) -> None:
    await put(mesh, "billing")
    before = await mesh.webhooks.get("billing")
    person = await signed_in(role)
    for path in (LIST, path_of("billing")):
        assert actions_of(await read(person, path)) == set()
    assert "Your token has the role" in (await read(person, LIST)).text
    key = await form_key(person)
    given = {"name": "new", "url": f"{DEAD_ADDRESS}/2", "failed": "week", "keep": "day", "form_key": key}
    for path in (LIST, *(path_of("billing", action) for action in ACTIONS)):
        answer = await person.post(path, data=given)
        assert answer.status_code == 403, (path, answer.text)
        assert "The mesh refused this" in answer.text
    assert await mesh.webhooks.list() == [before]


async def test_a_form_of_another_page_changes_nothing(mesh: Mesh, signed_in: SignedIn) -> None:
    await put(mesh, "billing")
    before = await mesh.webhooks.get("billing")
    operator = await signed_in()
    given = {"name": "new", "url": f"{DEAD_ADDRESS}/2", "failed": "week", "keep": "day"}
    for path in (LIST, *(path_of("billing", action) for action in ACTIONS)):
        for wrong in ({}, {"form_key": "guessed"}):
            answer = await operator.post(path, data={**given, **wrong})
            assert answer.status_code == 403, path
        answer = await operator.post(
            path,
            data={**given, "form_key": await form_key(operator)},
            headers={"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
        )
        assert answer.status_code == 403, path
    assert await mesh.webhooks.list() == [before]


async def test_a_tenant_sees_and_changes_nothing_of_another(
    console: RunningConsole, mesh: Mesh, signed_in: SignedIn
) -> None:
    async with open_tenant(console) as other:
        secret = await put(other.mesh, "billing", f"{DEAD_ADDRESS}/of-the-other")
        before = await other.mesh.webhooks.get("billing")
        operator = await signed_in()
        assert "billing" not in (await read(operator, LIST)).text
        await read(operator, path_of("billing"), status=404)
        await read(operator, path_of("billing") + "?part=deliveries", status=404)
        given = {"url": DEAD_ADDRESS, "failed": "week", "keep": "day", "form_key": await form_key(operator)}
        for action in ACTIONS:
            answer = await operator.post(path_of("billing", action), data=given)
            assert answer.status_code == 404, action
        assert await other.mesh.webhooks.get("billing") == before

        (own,) = secrets_in(page_of(await create(operator, "billing", DEAD_ADDRESS)))
        assert own != secret, "the same name in another tenant is another webhook"
        assert "of-the-other" not in (await read(operator, LIST)).text
        assert (await mesh.webhooks.get("billing")).url == DEAD_ADDRESS
