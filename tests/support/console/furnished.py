"""A tenant with something on every page: sessions in all states, approvals, agents, plugins,
webhooks, schedules, files, an operation.
"""

import asyncio
import json
from dataclasses import dataclass, replace
from datetime import timedelta

from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest
from spawnmesh_client.approval_views import ApprovalPolicy
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.budget_views import Budget
from spawnmesh_client.client import Mesh
from spawnmesh_client.resource_views import Agent, Plugin
from spawnmesh_client.session import Session

from tests.support.console.budgets import waiting_session
from tests.support.console.failed import FailedRow, put_failed_calls
from tests.support.console.published import file_of, publishing_session
from tests.support.console.schedules import put_schedule
from tests.support.console.spent import SpentRow, put_budget, put_spending
from tests.support.console.stored import dry_run_of_tiering
from tests.support.console.visitors import ConsoleTenant
from tests.support.waiting import eventually

UNSEEN = "\u202e\u200b\u2066\U000e0041\x1b\x07"
"""Characters that a browser obeys or hides."""

MARKUP = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;{{ 70009*7 }}"
_CALLER = "You are the caller. Make the call that you are given, and say what came of it."
_DEAD_ENDPOINT = "grpc://127.0.0.1:1"
_HOSTILE_ADDRESS = "https://127.0.0.1:1/</code><script>alert(1)</script>\"'&amp;{{70009*7}}"
_WORDS = 400


@dataclass(frozen=True)
class Furnished:
    """The ids of what the tenant has. `marker` is in its texts, and in those of no other tenant."""

    tenant: ConsoleTenant
    marker: str
    done: str
    parent: str
    child: str
    waiting: str
    asking: str
    killed: str
    publishing: str
    budgeted: str
    output_set: str
    waiting_approval: str
    asking_approval: str
    agent: str
    plugin: str
    webhook: str
    schedule: str
    operation: str

    @property
    def sessions(self) -> tuple[str, ...]:
        """The ids of all sessions."""
        first = self.done, self.budgeted, self.waiting, self.parent
        return *first, self.asking, self.child, self.killed, self.publishing


async def furnish(tenant: ConsoleTenant) -> Furnished:
    """Fill the tenant, and wait until each run is where it stays. Texts of people, tools and models
    are hostile to a page.
    """
    mesh, marker = tenant.mesh, f"marker-{tenant.tenant_id}"
    hostile = f"{marker} {MARKUP} {UNSEEN}"
    policy = ApprovalPolicy(tools=("write_file",), timeout=timedelta(days=1))
    tools = ("write_file", "ask_user", "sessions_spawn", "list_files")
    await mesh.agents.put(
        Agent("clerk", f"{_CALLER}\n{hostile}", tools=tools, spawnable_agents=("clerk",), approval=policy)
    )
    plugin = Plugin("watcher", _DEAD_ENDPOINT, ("AGENT_END",))
    await mesh.plugins.register(plugin, allow_unreachable=True)
    address = f"{_HOSTILE_ADDRESS}{marker}"
    await mesh.webhooks.put("hook", url=address, allow_unreachable=True)
    await mesh.webhooks.test("hook")
    await put_schedule(mesh, "nightly", f"Say hello. {hostile}", metadata={"note": MARKUP})
    fired = await mesh.schedules.run("nightly")
    long = " ".join(f"{marker} word{number}" for number in range(_WORDS))
    files = [Attachment(f"notes {marker}.txt", long.encode()), Attachment("empty.bin", b"")]
    done, parent, waiting, asking, killed = await asyncio.gather(
        mesh.spawn(f"{hostile}\n{long}", label=_printable(f"{marker} {MARKUP}"), attachments=files,
                   metadata={"ticket": "17", "note": MARKUP}, mode="SESSION"),
        mesh.spawn(_call("sessions_spawn", agent_id="clerk", task=f"{hostile}", label="child"), agent="clerk"),
        mesh.spawn(_call("write_file", path="note.txt", content=f"\ud800 {hostile}\n{long}"), agent="clerk"),
        mesh.spawn(_call("ask_user", question=f"{hostile}?", choices=["red", f"blue {hostile}"]), agent="clerk"),
        mesh.spawn(hostile, model="scripted/slow", label="killed"),
    )  # fmt: skip
    await killed.kill()
    await asyncio.gather(done.result(), parent.result(), (await mesh.session(fired.session_id)).result())
    (child,) = [one async for one in parent.children()]
    await child.result()
    # The names and types that are stored are those without unseen characters and reserved ones.
    names = (f"{marker} '&amp;{{{{ 7+42 }}}}.txt", f"{marker} {'w' * 120}.png")
    publishing, published = await publishing_session(
        tenant, [file_of(name, long.encode(), MARKUP) for name in names], label="publishing"
    )
    budget = Budget(calls=1, cost=0.5, tokens=200_000, run_time=timedelta(minutes=10))
    budgeted = await waiting_session(mesh, budget=budget, label=f"{marker} budgeted")
    spent = [
        SpentRow(ago, agent, "acme/large", 10_000 + ago) for ago in (0, 2, 40) for agent in ("clerk", "", "*")
    ]
    await put_spending(tenant, spent)
    failed = [
        FailedRow(ago, "acme/large", reason, 9, 5, 2) for ago in (0, 7) for reason in ("TIMEOUT", "AUTH")
    ]
    await put_failed_calls(tenant, failed)
    await put_budget(tenant, 10**9, spent_micros=10**8, reserved_micros=10**7)
    waits = [await eventually(lambda one=one: _approval_of(mesh, one)) for one in (waiting, asking)]
    return Furnished(
        tenant,
        marker,
        done.session_id,
        parent.session_id,
        child.session_id,
        waiting.session_id,
        asking.session_id,
        killed.session_id,
        publishing.session_id,
        budgeted.session_id,
        published[0].set_id,
        *waits,
        "clerk",
        "watcher",
        "hook",
        "nightly",
        await dry_run_of_tiering(mesh, done.session_id),
    )


def _call(tool: str, **arguments: object) -> str:
    """Return the task with which the scripted model makes a call. Half of a surrogate pair is such
    a text only as an escape.
    """
    return f"{tool} {json.dumps(arguments, ensure_ascii=True)}"


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())


async def _approval_of(mesh: Mesh, session: Session) -> str:
    run = (await mesh.session(session.session_id)).latest_run
    return run.approval_id if run is not None else ""


async def snapshot(mesh: Mesh) -> list[str]:
    """Return the things of a tenant that a form could change, as texts that compare."""
    sessions = [one async for one in mesh.wire.sessions()]
    watches = [WatchSessionRequest(session_id=one.session_id, ends_at_newest=True) for one in sessions]
    events = [[str(message) async for message in mesh.wire.watch(one)] for one in watches]
    approvals = [one async for one in mesh.approvals.list()]
    # A webhook begins to fail when its first message is sent.
    webhooks = [replace(one, failing_since_time=None) for one in await mesh.webhooks.list()]
    named = (await mesh.agents.list(), await mesh.plugins.list(), webhooks, await mesh.schedules.list())
    operations = [one async for one in mesh.operations.list()]
    others = (*named, approvals, events, sessions, operations)
    return [str(one) for one in others]
