"""The addresses of the console, from its routes: a new page is walked and attacked by itself."""

import re
from collections.abc import Callable, Sequence

import httpx2
from spawnmesh_console.app import ROUTES
from starlette.routing import Route

from tests.support.console.furnished import Furnished

PUBLIC = ("/sign-in", "/sign-in/oidc", "/sign-in/oidc/callback")
"""The paths for people who have not signed in."""

_ASSET = "/static/console.css"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")

# A path without parameters needs no example. A session and an approval of each kind are shown.
_EXAMPLES: dict[str, Callable[[Furnished], Sequence[str]]] = {
    "/sessions": lambda one: [
        "/sessions",
        "/sessions?state=FAILED&label=a&expression=metadata.ticket%20%3D%2017",
        "/sessions?part=rows",
    ],
    "/sessions/{session_id}": lambda one: [
        *(f"/sessions/{session}" for session in one.sessions),
        f"/sessions/{one.done}?part=family",
        f"/sessions/{one.publishing}?part=published",
    ],
    "/sessions/{session_id}/published": lambda one: [
        f"/sessions/{one.publishing}/published",
        f"/sessions/{one.done}/published",
    ],
    "/sessions/{session_id}/published/{set_id}": lambda one: [
        f"/sessions/{one.publishing}/published/{one.output_set}"
    ],
    "/sessions/{session_id}/published/{set_id}/files/{place:int}": lambda one: [
        f"/sessions/{one.publishing}/published/{one.output_set}/files/0"
    ],
    "/sessions/{session_id}/files/{place:int}": lambda one: [f"/sessions/{one.done}/files/0"],
    "/sessions/{session_id}/entries/{seq:int}/text": lambda one: [f"/sessions/{one.done}/entries/1/text"],
    "/sessions/{session_id}/entries/{seq:int}/images/{place:int}": lambda one: [],  # No model draws here.
    "/approvals": lambda one: ["/approvals", "/approvals?show=decided", "/approvals?part=waiting"],
    "/approvals/{approval_id}": lambda one: [
        f"/approvals/{one.waiting_approval}",
        f"/approvals/{one.asking_approval}",
    ],
    "/models": lambda one: ["/models", "/models?explain=scripted%2Fagent"],
    "/spend": lambda one: ["/spend", "/spend?days=90", "/spend?part=today"],
    "/webhooks/{name}": lambda one: [
        f"/webhooks/{one.webhook}",
        f"/webhooks/{one.webhook}?state=FAILED&type=webhook.test",
        f"/webhooks/{one.webhook}?part=deliveries",
    ],
    "/schedules/{name}": lambda one: [
        f"/schedules/{one.schedule}",
        f"/schedules/{one.schedule}?outcome=FAILED",
        f"/schedules/{one.schedule}?part=firings",
    ],
    "/storage": lambda one: ["/storage", "/storage?part=rows", "/storage?part=operations"],
    "/storage/operations": lambda one: [
        "/storage/operations",
        "/storage/operations?state=open",
        "/storage/operations?part=rows",
    ],
    "/storage/operations/{operation_id}": lambda one: [
        f"/storage/operations/{one.operation}",
        f"/storage/operations/{one.operation}?part=state",
    ],
    "/tenants": lambda one: [],  # The pages of operators of the mesh, who see nothing else.
    "/tenants/{tenant_id}": lambda one: [],
    "/sign-in/oidc": lambda one: [],  # Its tests have an identity provider.
    "/sign-in/oidc/callback": lambda one: [],
}


def routes(method: str) -> list[Route]:
    """Return the routes of the console with this method, without those of its assets."""
    return [route for route in ROUTES if isinstance(route, Route) and method in (route.methods or ())]


def some_path(route: Route) -> str:
    """Return a path of the route; nothing needs to be there."""
    return _PARAMETER.sub("1", route.path)


def addresses_of(route: Route, furnished: Furnished) -> Sequence[str]:
    """Return the addresses of the route at which the tenant has something.

    Raises AssertionError for a route with a parameter that is not known here, and no example.
    """
    if route.path in _EXAMPLES and route.methods and "GET" in route.methods:
        return _EXAMPLES[route.path](furnished)
    names = {"webhooks": furnished.webhook, "schedules": furnished.schedule}
    known = {
        "session_id": furnished.done,
        "approval_id": furnished.waiting_approval,
        "agent_id": furnished.agent,
        "operation_id": furnished.operation,
        "name": names.get(route.path.split("/")[1], furnished.plugin),
    }
    unknown = set(_PARAMETER.findall(route.path)) - known.keys()
    assert not unknown, f"{route.path} needs an example in tests/support/console/addresses.py"
    return [_PARAMETER.sub(lambda found: known[found[1]], route.path)]


def get_addresses(furnished: Furnished) -> list[str]:
    """Return all addresses that can be read, and an asset."""
    return [address for route in routes("GET") for address in addresses_of(route, furnished)] + [_ASSET]


def post_addresses(furnished: Furnished) -> list[str]:
    """Return the address of each form for people who have signed in."""
    return [
        address
        for route in routes("POST")
        if route.path not in PUBLIC
        for address in addresses_of(route, furnished)
    ]


async def begin_of(client: httpx2.AsyncClient, address: str) -> tuple[httpx2.Response, str]:
    """Return the answer and its text; of a stream that does not end, only the answer."""
    async with client.stream("GET", address) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer, ""
        return answer, (await answer.aread()).decode(errors="replace")


def is_page(answer: httpx2.Response, text: str) -> bool:
    """Return whether the answer is a page of the console, and not a part of one or bytes of a session."""
    return answer.headers.get("content-type", "").startswith("text/html") and "<!doctype html>" in text[:200]
