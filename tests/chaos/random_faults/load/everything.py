"""All users of the load at once."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from google.protobuf.duration_pb2 import Duration
from spawnmesh.hook.v1 import event_pb2, hook_service_pb2, webhook_pb2, webhook_service_pb2
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.webhook_service_pb2_grpc import WebhookServiceStub
from spawnmesh.session.v1.approval_pb2 import ApprovalPolicy
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.demo_agents import profiles
from spawnmesh_devstack.models import SCRIPTED_AGENT, SCRIPTED_FLAKY
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_runtime.tokens import TokenMinter
from spawnmesh_session.domain.sessions import TERMINAL_SESSION_STATES

from tests.chaos.random_faults.facts import Facts
from tests.chaos.random_faults.field import Field
from tests.chaos.random_faults.history import Call, History, Outcome
from tests.chaos.random_faults.load.calls import Client
from tests.chaos.random_faults.load.careful import (
    CAREFUL,
    CAREFUL_TOOL,
    Person,
    ask_steadily,
    decide_steadily,
)
from tests.chaos.random_faults.load.conversations import converse_steadily
from tests.chaos.random_faults.load.frugal import raise_steadily, spend_steadily
from tests.chaos.random_faults.load.harness import Harness, order_steadily
from tests.chaos.random_faults.load.spawners import PARENTS, probe_steadily, spawn_steadily, story_files
from tests.chaos.random_faults.load.watchers import pry_steadily, watch_again, watch_steadily
from tests.chaos.random_faults.load.writers import FIRST_EPOCH, Writer, writer_name
from tests.chaos.random_faults.plan import PLUGIN
from tests.support.serving import caller_at

TENANTS = ["t-gated", "t-plain", "t-other"]
GATED, PLAIN, OTHER = TENANTS
_WRITERS = 3
OPERATIONS = frozenset(
    {
        "spawn",
        "wait",
        "send",
        "kill",
        "watch",
        "pry",
        "claim",
        "harness",
        "acquire",
        "append",
        "list",
        "decide",
        "raise",
    }
)
"""All that the users of the load do."""
_PEOPLE = ("ada", "bob")
"""The people of each tenant who decide on approvals."""
_TOKEN_SECONDS = 12 * 3600.0
_SHORT_WAIT = Duration(seconds=15)
"""The time for a decision in one of the tenants: it can end in an outage."""
_WATCHED_AGAIN = 20  # Sessions of each tenant.


def is_in_full_swing(calls: Sequence[Call]) -> bool:
    """Return whether every kind of user had an answer, and a session with a child was spawned."""
    seen = {call.operation for call in calls if call.is_ok}
    seen |= {call.operation for call in calls if call.operation == "pry" and call.outcome is Outcome.REFUSED}
    has_parent = any(
        call.is_ok and call.operation == "spawn" and call.given.get("label") in PARENTS for call in calls
    )
    return has_parent and seen >= OPERATIONS


@dataclass(frozen=True)
class Load:
    """The load of one seed. `files` is an empty directory.

    With a `slowness` above 1 the users pause longer. Two processors are always busy without it,
    which is good for finding faults, and bad for measuring times.
    """

    field: Field
    history: History
    seed: int
    stop: asyncio.Event
    files: Path
    slowness: float = 1.0

    async def run(self) -> None:
        """Load the mesh until `stop` is set and every client has its last answer."""
        async with AsyncExitStack() as exits, asyncio.TaskGroup() as users:
            meshes = {
                tenant: await exits.enter_async_context(open_client_mesh(self.field, tenant))
                for tenant in TENANTS
            }
            story = await story_files(self.files / "story")
            for tenant in (GATED, PLAIN, OTHER):
                spawner = self._client(tenant, meshes)
                users.create_task(spawn_steadily(spawner, story))
                users.create_task(watch_steadily(self._client(tenant, meshes), spawner))
                stranger = self._client(PLAIN if tenant != PLAIN else OTHER, meshes)
                users.create_task(pry_steadily(stranger, spawner))
                users.create_task(ask_steadily(self._client(tenant, meshes)))
                users.create_task(spend_steadily(self._client(tenant, meshes)))
            users.create_task(spawn_steadily(self._client(GATED, meshes), story))
            users.create_task(probe_steadily(self._client(OTHER, meshes)))
            users.create_task(probe_steadily(self._client(GATED, meshes)))
            users.create_task(converse_steadily(self._client(GATED, meshes)))
            users.create_task(converse_steadily(self._client(PLAIN, meshes)))
            users.create_task(order_steadily(self._client(GATED, meshes)))
            users.create_task(order_steadily(self._client(OTHER, meshes)))
            transcript = await exits.enter_async_context(
                caller_at(self.field.targets["transcript"], "transcript")
            )
            contended = await self._finished_session(self._client(OTHER, meshes))
            for number in range(_WRITERS):
                writer = Writer(
                    transcript,
                    self.field.stack.keys,
                    self.history,
                    Random(f"{self.seed} writer {number}"),
                    self.stop,
                    OTHER,
                    contended,
                    writer_name(),
                    FIRST_EPOCH,
                    self.slowness,
                )
                users.create_task(writer.write_steadily())

    async def decide(self) -> None:
        """Decide on approvals and raise budgets in every tenant. It never returns: runs still wait
        for people when the load has ended.
        """
        minter = TokenMinter("client", self.field.stack.keys / "client.pem")
        async with AsyncExitStack() as exits, asyncio.TaskGroup() as deciding:
            for tenant in TENANTS:
                people = []
                for name in _PEOPLE:
                    token = minter.client_token(tenant, name, _TOKEN_SECONDS)
                    mesh = await exits.enter_async_context(open_client_mesh(self.field, tenant, token))
                    random = Random(f"{self.seed} {tenant} {name}")
                    never = asyncio.Event()
                    client = Client(tenant, mesh, self.history, random, never, slowness=self.slowness)
                    people.append(Person(name, client))
                deciding.create_task(decide_steadily(people))
                for person in people:
                    deciding.create_task(raise_steadily(person.client))

    async def run_harnesses(self) -> None:
        """Claim and execute EXTERNAL runs. It never returns: runs remain when the load has ended."""
        targets = self.field.targets
        async with (
            caller_at(targets["session"], "session") as session,
            caller_at(targets["transcript"], "transcript") as transcript,
            asyncio.TaskGroup() as harnesses,
        ):
            for number in range(2):
                harness = Harness(
                    session,
                    transcript,
                    self.field.stack.keys,
                    self.history,
                    Random(f"{self.seed} harness {number}"),
                    f"harness-{number}",
                )
                harnesses.create_task(harness.claim_steadily())

    def _client(self, tenant: str, meshes: Mapping[str, WireMesh]) -> Client:
        random = Random(f"{self.seed} {tenant}")
        return Client(tenant, meshes[tenant], self.history, random, self.stop, slowness=self.slowness)

    async def _finished_session(self, client: Client) -> str:
        """Return a session whose transcript belongs to no run any more."""
        session_id = await client.spawn(client.spawn_request("Say something.", label="contended"))
        await client.wait(session_id)
        return session_id


async def watch_sessions_again(field: Field, history: History, seed: int, facts: Facts) -> None:
    """Watch some ended sessions of each tenant from their beginning, when the mesh is at rest."""
    for tenant in TENANTS:
        ended = sorted(
            row["session_id"]
            for row in facts.rows("sessions")
            if row["tenant_id"] == tenant and row["state"] in TERMINAL_SESSION_STATES
        )
        random = Random(f"{seed} {tenant} again")
        async with open_client_mesh(field, tenant) as mesh:
            client = Client(tenant, mesh, history, random, asyncio.Event())
            await watch_again(client, random.sample(ended, min(_WATCHED_AGAIN, len(ended))))


@asynccontextmanager
async def open_client_mesh(field: Field, tenant: str, token: str = "") -> AsyncIterator[WireMesh]:
    """Connect to every service as a client of the tenant, or with the token, through the links."""
    targets = {name.replace("-", "_"): target for name, target in field.targets.items()}
    async with connect_wire(**targets, token=token or field.stack.client_token(tenant)) as mesh:
        yield mesh


async def prepare_tenants(field: Field, receiver: str = "") -> None:
    """Create the tenants with their agents, and register the plugin and webhooks. Before any fault."""
    async with connect_wire(
        session=field.stack.targets["session"], token=field.stack.admin_token()
    ) as operator:
        for tenant in TENANTS:
            await operator.create_tenant(tenant)
    models = [SCRIPTED_FLAKY, SCRIPTED_AGENT]
    caller = AgentProfile(
        agent_id=CALLER,
        system_prompt=f"You are the {CALLER}.",
        models=models,
        tools=["sessions_spawn"],
        spawnable_agents=["*"],
    )
    for tenant in TENANTS:
        async with connect_wire(
            session=field.stack.targets["session"],
            hook=field.stack.targets["hook"],
            token=field.stack.client_token(tenant),
        ) as mesh:
            careful = AgentProfile(
                agent_id=CAREFUL,
                system_prompt=f"You are the {CALLER}.",
                models=models,
                tools=[CAREFUL_TOOL],
                approval=ApprovalPolicy(
                    tools=[CAREFUL_TOOL], timeout=_SHORT_WAIT if tenant == OTHER else None
                ),
            )
            for agent in (caller, careful, *profiles(models)):
                await mesh.put_agent(agent)
            hooks = mesh.service("hook")
            if receiver:
                webhook = webhook_pb2.Webhook(name="chaos", url=f"{receiver}/{tenant}")
                await hooks.unary(
                    WebhookServiceStub(hooks.channel).UpdateWebhook,
                    webhook_service_pb2.UpdateWebhookRequest(webhook=webhook, allow_missing=True),
                )
            if tenant == GATED:
                request = hook_service_pb2.UpdatePluginRequest(
                    allow_missing=True, plugin=_plugin(field.plugin_endpoint)
                )
                await hooks.unary(HookServiceStub(hooks.channel).UpdatePlugin, request)


def _plugin(endpoint: str) -> hook_service_pb2.Plugin:
    """Return the plugin: its gates fail closed."""
    return hook_service_pb2.Plugin(
        name=PLUGIN,
        endpoint=endpoint,
        hooks=[
            event_pb2.HOOK_KIND_BEFORE_SPAWN,
            event_pb2.HOOK_KIND_BEFORE_TOOL_CALL,
            event_pb2.HOOK_KIND_BEFORE_AGENT_FINALIZE,
            event_pb2.HOOK_KIND_SUBAGENT_ENDED,
        ],
        timeout=Duration(seconds=5),
        failure_policy=hook_service_pb2.FAILURE_POLICY_CLOSED,
        grants=[hook_service_pb2.GRANT_CONVERSATION_ACCESS, hook_service_pb2.GRANT_FINALIZE_CONTROL],
    )
