"""A name whose addresses change between a check and the call leads no call into the network of the mesh.

The operator's network is 127.0.0.3 here, where a service listens that no tenant may reach. Plugins
may be at 127.0.0.2. The tenant's nameserver answers each lookup as it likes. Nothing else on the
machine uses these addresses: a server of another test could have the port at 127.0.0.1, or a client
of one that ended could still call it there.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.domain.endpoints import Address

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import OPEN, SPAWN, HookMesh, Tenant, open_mesh
from tests.support.hook.scripted_plugin import ALLOW
from tests.support.hook.webhook_server import https_site, write_certificate

HOST = "plugin.rebind.test"
OWN, INTERNAL = "127.0.0.2", "127.0.0.3"
MAPPED = f"::ffff:{INTERNAL}"


@dataclass
class Nameserver:
    """Answers the lookups in turn; the last answer is repeated."""

    answers: list[tuple[str, ...]] = field(default_factory=list)
    lookup_count: int = 0

    def resolve(self, host: str) -> Iterable[Address]:
        assert host == HOST
        self.lookup_count += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [ip_address(address) for address in answer]


@dataclass
class Attack:
    """A tenant's plugin, its nameserver, and the connections to the service that it may not reach."""

    tenant: Tenant
    names: Nameserver
    endpoint: str
    heard: list[object]
    intruded: list[object] = field(default_factory=list)

    async def register(self, *, allow_unreachable: bool) -> Reason | None:
        try:
            await self.tenant.register(
                "gate", self.endpoint, SPAWN, policy=OPEN, allow_unreachable=allow_unreachable
            )
        except MeshError as error:
            return error.reason
        return None

    async def call(self) -> str:
        """Call the plugin once. Return the decision, and the error of a call that failed."""
        answer = await self.tenant.as_client("TestPlugin", pb.TestPluginRequest(name="gate"))
        [delivery] = answer.deliveries
        return str(delivery.error or decision_of(delivery))


@pytest.fixture(scope="module")
async def mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls") / "webhook.pem", HOST)


@pytest.fixture(params=["grpc", "webhook"])
async def attack(request: pytest.FixtureRequest, mesh: HookMesh, certificate: Path) -> AsyncIterator[Attack]:
    names = Nameserver([(OWN,)])
    settings = {
        "allow_private_endpoints": False,
        "allowed_endpoint_hosts": ["*.rebind.test", f"{OWN}/32"],
        "webhook_ca_file": certificate,
        "resolve": names.resolve,
    }
    async with AsyncExitStack() as exits:
        if request.param == "grpc":
            plugin = await mesh.plugin(ALLOW, host=HOST, address=OWN)
            endpoint, heard = plugin.endpoint, plugin.heard
        else:
            heard = []

            async def handle(asked: web.Request) -> web.Response:
                heard.append(await asked.json())
                return web.json_response({"decision": {"allow": {}}})

            site = https_site(handle, certificate, host=HOST, address=OWN)
            endpoint = await exits.enter_async_context(site)
        attack = Attack(mesh.tenant(await mesh.replica(**settings)), names, endpoint, heard)

        async def intrude(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            attack.intruded.append(writer.get_extra_info("peername"))
            writer.close()

        port = urlsplit(endpoint).port
        internal = await asyncio.start_server(intrude, INTERNAL, port)
        await exits.enter_async_context(internal)
        yield attack


REFUSED = "the call failed: ENDPOINT_NOT_ALLOWED"


async def test_call_goes_to_the_address_that_was_checked(attack: Attack) -> None:
    assert await attack.register(allow_unreachable=True) is None
    attack.names.answers, attack.names.lookup_count = [(OWN,), (INTERNAL,)], 0
    assert await attack.call() == "allow"
    assert attack.names.lookup_count == 1
    assert await attack.call() == REFUSED
    attack.names.answers = [(OWN,)]
    assert await attack.call() == "allow"
    assert len(attack.heard) == 2
    assert attack.intruded == []


@pytest.mark.parametrize("answer", [(INTERNAL,), (OWN, INTERNAL), (INTERNAL, OWN), (MAPPED,), (OWN, MAPPED)])
async def test_answer_with_an_address_that_is_not_allowed_is_refused(
    attack: Attack, answer: tuple[str, ...]
) -> None:
    assert await attack.register(allow_unreachable=True) is None
    attack.names.answers = [answer]
    assert await attack.call() == REFUSED
    assert await attack.register(allow_unreachable=True) is Reason.ENDPOINT_NOT_ALLOWED
    assert attack.heard == []
    assert attack.intruded == []


async def test_registration_reaches_no_address_that_was_not_checked(attack: Attack) -> None:
    """A registration calls the plugin to see that it can be reached."""
    for checked in range(4):
        attack.names.answers = [*([(OWN,)] * checked), (INTERNAL,)]
        await attack.register(allow_unreachable=False)
    assert attack.intruded == []
    attack.names.answers = [(OWN,)]
    assert await attack.register(allow_unreachable=False) is None
    assert attack.intruded == []


async def test_gate_of_a_spawn_is_called_at_the_checked_address(attack: Attack) -> None:
    assert await attack.register(allow_unreachable=True) is None
    for answers in ([(OWN,), (INTERNAL,)], [(INTERNAL,), (OWN,)], [(OWN,)]):
        attack.names.answers = list(answers)
        await attack.tenant.spawn()
    errors = [row.error for row in await attack.tenant.deliveries()]
    assert errors == ["", REFUSED, ""]
    assert len(attack.heard) == 2
    assert attack.intruded == []
