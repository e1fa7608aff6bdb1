"""`/tenants`: what operators of the mesh see of its tenants, and that nobody else does."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx2
import pytest
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.session.v1.tenant_service_pb2 import ListTenantsRequest
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_client.client import Mesh
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.addresses import get_addresses, post_addresses
from tests.support.console.furnished import MARKUP, UNSEEN, Furnished, snapshot
from tests.support.console.held import held_settings, hurried
from tests.support.console.html import Page
from tests.support.console.running_console import RunningConsole
from tests.support.console.said import ended_session
from tests.support.console.visitors import (
    ConsoleTenant,
    SignedIn,
    form_key,
    operator_of_the_mesh,
    read,
    sign_in,
)
from tests.support.waiting import eventually

LIST = "/tenants"
SERVICES = ("session", "attachment-blob", "transcript", "hook", "model-router")
OF_NO_TENANT = {"/", "/sign-out", "/static/console.css"}
"""The addresses that are not about one tenant."""


@pytest.fixture
async def operators(console: RunningConsole) -> AsyncIterator[Mesh]:
    """Connect as an operator of the mesh."""
    async with operator_of_the_mesh(console) as mesh:
        yield mesh


@pytest.fixture
async def operator(signed_in: SignedIn, stack: Stack) -> httpx2.AsyncClient:
    """Sign in an operator of the mesh."""
    return await signed_in(stack.admin_token())


def new_id() -> str:
    """Return an id that no tenant has."""
    return f"c-{uuid4().hex[:12]}"


def navigation_of(page: Page) -> list[str]:
    """Return the links that lead to a list."""
    return [link for link in page.links if link.count("/") == 1 and link != "/" and "?" not in link]


async def pages_of(client: httpx2.AsyncClient) -> AsyncIterator[tuple[str, Page]]:
    """Yield each page of the list with its path. The mesh has the tenants of other tests, too."""
    path: str | None = LIST
    while path is not None:
        page = await read(client, path)
        yield path, page
        path = next((link for link in page.links if "page_token=" in link), None)


async def page_with(client: httpx2.AsyncClient, tenant_id: str) -> Page | None:
    """Return the page of the list that has the tenant; None if none has it."""
    pages = pages_of(client)
    return await anext((page async for _, page in pages if f"{LIST}/{tenant_id}" in page.links), None)


async def test_an_operator_of_the_mesh_is_led_to_the_tenants_alone(
    stack: Stack, tenant: ConsoleTenant, visitor: httpx2.AsyncClient
) -> None:
    form = (await read(visitor, "/sign-in")).form("/sign-in")
    answer = await visitor.post("/sign-in", data={**form.fields, "token": stack.admin_token()})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    page = await read(visitor, "/")
    assert page.title == "Tenants · Spawnmesh"
    assert await page_with(visitor, tenant.tenant_id) is not None
    assert "operator of the mesh Subject devstack Role admin" in page.text
    assert {*navigation_of(page)} == {LIST}
    missing = await read(visitor, "/nothing", status=404)
    assert LIST in missing.links
    assert "/sessions" not in missing.links
    answer = await visitor.post("/sign-out", data=page.form("/sign-out").fields)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert not visitor.cookies


async def test_an_operator_of_the_mesh_sees_and_changes_nothing_of_a_tenant(
    furnished: Furnished, operator: httpx2.AsyncClient
) -> None:
    before = await snapshot(furnished.tenant.mesh)
    addresses = {*get_addresses(furnished)} - OF_NO_TENANT
    assert len(addresses) > 20
    for address in addresses:
        if not address.startswith("/sign-in"):
            answer = await operator.get(address)
            assert answer.status_code == 403, address
            assert "This page is about one tenant" in answer.text, address
            assert furnished.marker not in answer.text, address
    data = {
        "form_key": await form_key(operator, LIST),
        "text": "hello",
        "task": "hello",
        "decision": "approve",
    }
    for address in post_addresses(furnished):
        if address not in OF_NO_TENANT:
            answer = await operator.post(address, data=data)
            assert answer.status_code == 403, address
            assert furnished.marker not in answer.text, address
    assert await snapshot(furnished.tenant.mesh) == before
    shown = await read(operator, f"{LIST}/{furnished.tenant.tenant_id}")
    assert furnished.marker not in shown.text
    assert not any(session in shown.text for session in furnished.sessions)


@pytest.mark.parametrize("role", [ClientRole.READER, ClientRole.USER, ClientRole.OPERATOR])
async def test_a_tenant_sees_no_tenants_not_even_itself(
    role: ClientRole, tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    person = await signed_in(role)
    assert LIST not in (await read(person, "/agents")).links
    for path in (LIST, f"{LIST}?part=rows", f"{LIST}/{tenant.tenant_id}", f"{LIST}/unknown"):
        page = await read(person, path, status=403)
        assert "The mesh refused this" in page.text
        assert "CALLER_NOT_ALLOWED" in page.text
        assert "settings" not in page.text.lower()


async def test_a_client_with_the_role_admin_sees_its_tenant_and_the_tenants(
    tenant: ConsoleTenant, signed_in: SignedIn
) -> None:
    person = await signed_in(ClientRole.ADMIN)
    page = await read(person, "/agents")
    assert {LIST, "/sessions", "/storage"} <= {*navigation_of(page)}
    assert await page_with(person, tenant.tenant_id) is not None
    assert "State active" in (await read(person, f"{LIST}/{tenant.tenant_id}")).text


async def test_settings_are_shown_with_their_values_or_defaults(
    operators: Mesh, operator: httpx2.AsyncClient
) -> None:
    settings = TenantSettings(max_spawn_depth=3, max_spawn_count=1200)
    settings.archive_after.FromSeconds(90 * 86_400)
    settings.attachments.enabled = False
    settings.transcripts.mask_secrets = True
    settings.routing.max_spend_micros_per_day = 25_500_000
    settings.call_limits.write.bytes_per_second = 2 * 1024 * 1024
    tenant_id = new_id()
    await operators.tenants.create(tenant_id, display_name="A name", settings=settings)
    page = await read(operator, f"{LIST}/{tenant_id}")
    assert "State active Name A name" in page.text
    for shown in (
        "Depth of a family max_spawn_depth 3 Live children of one parent max_live_child_count 5 default",
        "max_spawn_count 1,200 Ended",
        "archive_after 90 days Ended",
        "attachments.enabled no Files",
        "attachments.max_file_count 0 Size",
        "attachments.max_stored_bytes 100 GiB default",
        "transcripts.mask_secrets yes Large",
        "routing.max_spend_micros_per_day 25.50 Traces",
        "call_limits.write default 2 MiB default",
    ):
        assert shown in page.text, shown
    assert f"spawnmesh tenant delete {tenant_id}" in page.text
    assert f"spawnmesh tenant update {tenant_id}" in page.text
    assert not [form for form in page.forms if form.action != "/sign-out"], "the page changes nothing"


async def test_each_service_says_whether_it_has_the_newest_settings(
    tenant: ConsoleTenant, operators: Mesh, operator: httpx2.AsyncClient
) -> None:
    await ended_session(tenant.mesh)
    path = f"{LIST}/{tenant.tenant_id}"
    page = await read(operator, path)
    for service in SERVICES:
        assert f"prepared {service} settings 1, current" in page.text
    assert "sessions 1" in page.text
    assert "of 100 GiB" in page.text
    assert not [one for one in page.elements if "data-refresh" in one.attributes]

    async def behind() -> Page | None:
        found = await read(operator, path)
        return found if "prepared session settings 2, current" in found.text else None

    change = operators.tenants.update(
        tenant.tenant_id, ["settings.max_spawn_depth"], settings=TenantSettings(max_spawn_depth=4)
    )
    async with asyncio.TaskGroup() as tasks, held_settings(tenant):
        tasks.create_task(change)
        page = await eventually(behind)
        assert "prepared transcript settings 1, behind 2" in page.text
        assert "icon icon-warning" in {one["class"] for one in page.tags("svg")}
        (renewed,) = [
            one.attributes["data-refresh"] for one in page.elements if "data-refresh" in one.attributes
        ]
    assert renewed == f"{path}?part=status"

    async def is_current() -> bool:
        return "transcript settings 2, current" in (await read(operator, renewed)).text

    await eventually(is_current)


async def test_a_deletion_is_followed_to_its_end(
    tenant: ConsoleTenant, operators: Mesh, operator: httpx2.AsyncClient
) -> None:
    path = f"{LIST}/{tenant.tenant_id}"
    async with held_settings(tenant):
        operation = await operators.tenants.delete(tenant.tenant_id)
        page = await read(operator, path)
        assert f"Operation running started by {operation.subject} {operation.name}" in page.text
        assert "State being deleted" in page.text
        assert "Deletion requested" in page.text
        assert "The tenant is being deleted." in page.text
        assert "spawnmesh tenant delete" not in page.text
        assert f"{path}?part=status" in {one.attributes.get("data-refresh") for one in page.elements}
        listed = await page_with(operator, tenant.tenant_id)
        assert listed is not None
        assert f"being deleted {tenant.tenant_id}" in listed.text

    async def is_deleted() -> bool:
        return "State deleted" in (await read(operator, path)).text

    await hurried(tenant, is_deleted)
    page = await read(operator, path)
    assert f"Operation done started by {operation.subject} {operation.name}" in page.text
    assert "Killed 0 runs Removed 0 sessions, 0 transcripts, 0 objects" in page.text
    for service in SERVICES:
        assert f"purged {service} – nothing purge began" in page.text
    assert "max_spawn_depth" not in page.text, "nothing is known of its settings any more"
    assert await page_with(operator, tenant.tenant_id) is None
    found = await operator.get(LIST, params={"tenant_id": f" {tenant.tenant_id} "})
    assert (found.status_code, found.headers["location"]) == (303, path)


@pytest.mark.parametrize("tenant_id", ["never-created", "x", "A B", "..%2F", "%00", "é", "x" * 300])
async def test_an_id_that_no_tenant_has_is_not_found(tenant_id: str, operator: httpx2.AsyncClient) -> None:
    page = await read(operator, f"{LIST}/{tenant_id}", status=404)
    assert LIST in page.links
    assert "/sessions" not in page.links


async def test_the_names_of_tenants_are_harmless(operators: Mesh, operator: httpx2.AsyncClient) -> None:
    tenant_id, name = new_id(), f"{MARKUP} {UNSEEN} {'w' * 100}"
    await operators.tenants.create(tenant_id, display_name=name)
    listed = await page_with(operator, tenant_id)
    assert listed is not None
    for page in (listed, await read(operator, f"{LIST}/{tenant_id}")):
        assert MARKUP in page.text
        assert not {*UNSEEN} & {*page.text}
        for script in page.tags("script"):
            assert script["src"].startswith("/static/")
        assert not [one for one in page.elements if "onerror" in one.attributes]


async def test_tenants_are_on_pages(operators: Mesh, operator: httpx2.AsyncClient) -> None:
    ids = [f"p-{new_id()}" for _ in range(52)]
    for begin in range(0, len(ids), 8):
        await asyncio.gather(*(operators.tenants.create(one) for one in ids[begin : begin + 8]))
    peer = operators.wire.service("session")
    first = await peer.unary(TenantServiceStub(peer.channel).ListTenants, ListTenantsRequest(page_size=1))
    shown: Counter[str] = Counter()
    async for path, page in pages_of(operator):
        shown.update(link for link in page.links if link.startswith(f"{LIST}/"))
        assert ("First" in page.text) is (path != LIST)
    assert {f"{LIST}/{one}" for one in ids} <= shown.keys()
    assert {*shown.values()} == {1}, "each tenant is on one page"
    assert f"{LIST}/{first.tenants[0].tenant_id}" in shown
    page = await read(operator, f"{LIST}?page_token=nonsense", status=400)
    assert "page_token" in page.text


async def test_a_new_sign_in_replaces_the_operator_of_the_mesh(
    stack: Stack, tenant: ConsoleTenant, visitor: httpx2.AsyncClient
) -> None:
    assert (await visitor.get(LIST)).headers["location"] == "/sign-in?next=%2Ftenants"
    answer = await visitor.post("/sign-in", data={"token": stack.admin_token(), "next": LIST})
    assert answer.headers["location"] == LIST
    await read(visitor, LIST)
    await sign_in(visitor, tenant.token())
    await read(visitor, LIST, status=403)
    assert tenant.tenant_id in (await read(visitor, "/sessions")).text
