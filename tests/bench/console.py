"""The time in which the console answers, and the bytes of the first view.

The tenant has 10,000 sessions. The list is compared with the ListSessions that it makes, and the
page of a session with GetSession. A browser then also loads style sheets, scripts and icons: all of
them, compressed, are the bytes of the first view.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx2
import psycopg
from spawnmesh_client.client import Mesh, connect
from spawnmesh_client.wire import connect_wire
from spawnmesh_console.clients.session_pages import session_page
from spawnmesh_devstack.stack import Stack

from tests.bench.harness import Bench, Metric, Work

TENANT = "bench-console"
SESSIONS = 10_000
ROUNDS = 100
MOST_MILLISECONDS = 150.0
MOST_KIBIBYTES = 100 * 1000 / 1024
_FILL = (
    """
    insert into session.sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id, label,
        model, mode, context, cleanup, runtime, parent_session_id, parent_run_id, ancestor_ids, run_timeout,
        task_hash, traceparent, create_time, end_time)
    select %(tenant)s, 'ses_' || lpad(n::text, 26, '0'), 'r' || n, '', 'CLOSED', 'default', 'job ' || n, '',
        'RUN', 'ISOLATED', 'DELETE', 'SUBAGENT', '', '', '{}', '1 hour', '', '',
        now() - n * interval '1 second', now() - n * interval '1 second'
    from generate_series(1, %(count)s) n
    """,
    """
    insert into session.runs (tenant_id, run_id, session_id, position, state, deadline_time, end_time)
    select tenant_id, 'run' || substr(session_id, 4), session_id, 2, 'SUCCEEDED', now(), now()
    from session.sessions where tenant_id = %(tenant)s
    """,
)


async def run(bench: Bench) -> None:
    """Measure the list of sessions and the page of one."""
    stack = await bench.stack()
    address = await stack.start_console()
    async with (
        connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator,
        connect(targets=stack.targets, token=stack.client_token(TENANT)) as mesh,
        _browser(address, stack) as browser,
    ):
        await operator.create_tenant(TENANT)
        async with await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as connection:
            for statement in _FILL:
                await connection.execute(statement, {"tenant": TENANT, "count": SESSIONS})
        session = await mesh.spawn("Say hello.")
        await session.result(60)
        works: dict[str, Work] = {
            "list": partial(_get, browser, "/sessions"),
            "list_floor": partial(_list, mesh),
            "session": partial(_get, browser, f"/sessions/{session.session_id}"),
            "session_floor": partial(_look, mesh, session.session_id),
        }
        samples = await bench.compare(works, rounds=ROUNDS)
        for name in ("list", "session"):
            bench.latency(f"console.{name}", samples[name], samples[f"{name}_floor"])
            milliseconds = samples[name].p95 * 1e3
            bench.record(
                Metric(f"console.{name}.p95", milliseconds, "ms", None, None, ROUNDS, bound=MOST_MILLISECONDS)
            )
        size = await _first_view(browser) / 1024
        bench.record(Metric("console.first_view", size, "KiB", None, None, 1, bound=MOST_KIBIBYTES))


@asynccontextmanager
async def _browser(address: str, stack: Stack) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"accept": "text/html", "accept-encoding": "gzip"}
    async with httpx2.AsyncClient(base_url=address, headers=headers, trust_env=False) as browser:
        token = stack.client_token(TENANT)
        answer = await browser.post("/sign-in", data={"token": token}, headers={"origin": address})
        if answer.status_code != 303:
            raise RuntimeError(f"the sign-in answered {answer.status_code}")
        yield browser


async def _get(browser: httpx2.AsyncClient, path: str) -> None:
    (await browser.get(path)).raise_for_status()


async def _list(mesh: Mesh) -> None:
    await session_page(mesh)


async def _look(mesh: Mesh, session_id: str) -> None:
    await mesh.session(session_id)


async def _first_view(browser: httpx2.AsyncClient) -> int:
    """Return the compressed bytes of the list and of everything that it loads, with the imports of
    scripts.
    """
    waiting, seen, size = ["/sessions"], set[str](), 0
    while waiting:
        path = waiting.pop().partition("#")[0]
        if path in seen:
            continue
        seen.add(path)
        async with browser.stream("GET", path) as answer:
            answer.raise_for_status()
            raw = b"".join([piece async for piece in answer.aiter_raw()])
            size += len(raw)
        if path == "/sessions" or path.endswith(".js"):
            text = (await browser.get(path)).text
            waiting += re.findall(r'(?:src|href)="(/static/[^"]+)"', text)
            waiting += [f"/static/{name}" for name in re.findall(r'from "\./([^"]+)"', text)]
    return size
