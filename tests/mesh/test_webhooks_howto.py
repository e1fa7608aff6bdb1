"""The commands and programs of docs/howto/webhooks.md work unchanged."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from spawnmesh.hook.v1 import observed_pb2, webhook_pb2
from spawnmesh_client.webhook_views import EVENT_TYPES, TEST_EVENT_TYPE
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import ROOT, shell
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(420)

PAGE = (ROOT / "docs" / "howto" / "webhooks.md").read_text()
CREATE, USE, HTTP, RECOVER, ROTATE = typed("docs/howto/webhooks.md")
RECEIVER, LIBRARY, CLIENT = typed("docs/howto/webhooks.md", "python")
(EXAMPLE,) = typed("docs/howto/webhooks.md", "json")
HTTP_PAGE = (ROOT / "docs" / "howto" / "http.md").read_text()
GATEWAY = re.search(r"^```sh\n(.*?)^```", HTTP_PAGE, re.MULTILINE | re.DOTALL)
OTHER_URL = "http://127.0.0.1:8600/other"
VERIFYING = """
import json, sys
secret = sys.argv[1]
headers = json.loads(sys.argv[2])
body = sys.argv[3].encode()
{library}
"""


class Person:
    """A person who follows the page for a tenant of this test, with a port of this test."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        (self._port,) = free_ports(1)
        self._log = folder / "received.log"
        self.tenant = f"page-of-webhooks-{uuid4().hex[:8]}"

    def own(self, text: str) -> str:
        """Return a text of the page with the tenant and the port of this test."""
        return text.replace("acme", self.tenant).replace("8600", str(self._port))

    async def type(self, commands: str) -> str:
        script = f"cd {self._folder}\nexport SPAWNMESH_TENANT={self.tenant}\n{self.own(commands)}"
        return await shell(script, self._stack, self._folder)

    async def create(self) -> str:
        """Type the commands that create the webhook, and return the secret that they print."""
        printed = await self.type(CREATE)
        (secret,) = re.findall(r"whsec_\S+", printed)
        return str(secret)

    @asynccontextmanager
    async def receiving(self, secret: str) -> AsyncIterator[None]:
        """Run the receiver of the page during the block."""
        (self._folder / "receive.py").write_text(self.own(RECEIVER))
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                str(ROOT / ".venv" / "bin" / "python"), "receive.py",
                cwd=self._folder, stdout=log, stderr=log,
                env={**os.environ, "WEBHOOK_SECRET": secret},
            )  # fmt: skip
            try:
                await eventually(self._is_listening)
                yield
            finally:
                process.terminate()
                await process.wait()

    @asynccontextmanager
    async def gone(self) -> AsyncIterator[None]:
        """Answer 410 to each message during the block."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", self._port):
            yield

    async def is_paused(self) -> bool:
        """Return whether the mesh has paused the webhook."""
        return "answered that it is gone" in await self.type("spawnmesh webhook get tickets")

    async def received(self, event_type: str, count: int = 1) -> str:
        """Return the line of the receiver about a message of the type, once so many are there."""

        async def found() -> str:
            lines = self._log.read_text().splitlines()
            of_type = [line for line in lines if f" {event_type} " in line]
            return of_type[0] if len(of_type) >= count else ""

        return await eventually(found)

    async def _is_listening(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        return True


@pytest.fixture
def person(stack: Stack, tmp_path: Path) -> Person:
    """Return a person at the begin of the page."""
    return Person(stack, tmp_path)


async def test_commands_and_receiver_work_as_they_are_typed(person: Person) -> None:
    secret = await person.create()
    async with person.receiving(secret):
        printed = await person.type(USE)
        assert "delivered: HTTP status 204" in printed
        assert "run.ended" in printed, "the log has it"
        for event_type in ("webhook.test", "session.started", "run.ended"):
            assert re.match(r"evt_\w+ ", await person.received(event_type))
        assert "'outcome': 'SUCCEEDED'" in await person.received("run.ended")

        printed = await person.type(RECOVER)
        assert "messages that are sent again: 0" in printed
        printed = await person.type(f"{ROTATE}\nspawnmesh webhook test tickets")
        (new,) = re.findall(r"whsec_\S+", printed)
        assert new != secret
        assert "delivered" in printed, "the receiver has the previous secret, which signs too"
    async with person.receiving(new):
        assert "delivered" in await person.type("spawnmesh webhook test tickets")


async def test_messages_wait_for_a_webhook_that_is_paused_and_are_replayed(person: Person) -> None:
    secret = await person.create()
    tested = await person.type("spawnmesh webhook test tickets || true")
    assert "no connection, or it ended before the answer" in tested
    async with person.gone():
        await person.type('spawnmesh spawn "Say hello." --wait')
        await eventually(person.is_paused)
    printed = await person.type("spawnmesh webhook deliveries tickets --state pending")
    assert "HTTP status 410" in printed, "the message that was answered so waits, too"
    async with person.receiving(secret):
        printed = await person.type(RECOVER)
        assert "webhook.test" in printed
        assert "messages that are sent again: 0" in printed, "a test is never sent again"
        await person.received("session.started")
        event_id, *_ = (await person.received("run.ended")).split()
        printed = await person.type(f"spawnmesh webhook replay tickets {event_id}")
        assert "messages that are sent again: 1" in printed
        await person.received("run.ended", 2)


async def test_update_changes_what_is_given(person: Person) -> None:
    await person.create()
    printed = await person.type("spawnmesh webhook update tickets --events run.ended --timeout 9s")
    assert re.search(r"events +run\.ended *$", printed, re.MULTILINE)
    assert re.search(r"timeout +9s *$", printed, re.MULTILINE)
    assert "url" in printed
    refused = await person.type(f"spawnmesh webhook update tickets --url {OTHER_URL} 2>&1 || true")
    assert "ENDPOINT_NOT_REACHED" in refused
    assert "--allow-unreachable" in refused
    widened = await person.type(f"spawnmesh webhook put tickets --url {OTHER_URL} --allow-unreachable")
    assert "it was sent run.ended alone, and is sent all types from now on" in widened


async def test_program_creates_and_reads(person: Person, tmp_path: Path) -> None:
    secret = await person.create()
    (tmp_path / "client.py").write_text(person.own(CLIENT))
    async with person.receiving(secret):
        printed = await person.type("SPAWNMESH_TOKEN=$(spawnmesh token) python client.py")
        created, tested, logged = printed.splitlines()
        assert created == f"tickets {len(secret)}"
        assert tested == "webhook.test DELIVERED"
        assert re.fullmatch(r"evt_\w+ webhook\.test DELIVERED 1", logged)
        await person.received("webhook.test")


@pytest.mark.usefixtures("gateway")
async def test_http_creates_and_reads(person: Person) -> None:
    assert GATEWAY is not None
    secret = await person.create()
    async with person.receiving(secret):
        printed = await person.type(f"{GATEWAY[1]}\n" + HTTP.replace("\ncurl", "\necho\ncurl"))
    created, tested, listed = (json.loads(line) for line in printed.splitlines() if line.startswith("{"))
    assert created["secret"] == secret, "the webhook is the same one"
    types = ["WEBHOOK_EVENT_TYPE_RUN_ENDED", "WEBHOOK_EVENT_TYPE_APPROVAL_REQUESTED"]
    assert created["webhook"]["event_types"] == types
    assert tested["delivery"]["state"] == "WEBHOOK_DELIVERY_STATE_DELIVERED"
    assert [one["event_id"] for one in listed["deliveries"]] == [tested["delivery"]["event_id"]]


async def test_library_of_standard_webhooks_verifies(person: Person, tmp_path: Path) -> None:
    secret = await person.create()
    (tmp_path / "verify.py").write_text(VERIFYING.format(library=LIBRARY))
    sign = (
        "from datetime import UTC, datetime\nimport json, sys\nfrom standardwebhooks import Webhook\n"
        "at = datetime.now(UTC)\n"
        "print(json.dumps({'webhook-id': 'evt_1', 'webhook-timestamp': str(int(at.timestamp())),\n"
        "    'webhook-signature': Webhook(sys.argv[1]).sign('evt_1', at, sys.argv[2])}))\n"
    )
    (tmp_path / "sign.py").write_text(sign)
    body = json.dumps(json.loads(EXAMPLE))
    printed = await person.type(
        f"python verify.py '{secret}' \"$(python sign.py '{secret}' '{body}')\" '{body}'"
    )
    assert printed.startswith("run.ended {'session_id': ")


def test_table_has_all_types_and_fields() -> None:
    rows = re.findall(r"^\| `(\w+\.\w+)` \| [^|]* \| ([^|]*) \|$", PAGE, re.MULTILINE)
    assert {name for name, _ in rows} == {*EVENT_TYPES, TEST_EVENT_TYPE}
    messages = {
        "session.started": observed_pb2.SessionStartEvent,
        "session.ended": observed_pb2.SessionEndEvent,
        "run.ended": observed_pb2.AgentEndEvent,
        "approval.requested": observed_pb2.ApprovalRequestedEvent,
        "approval.escalated": observed_pb2.ApprovalEscalatedEvent,
        "approval.decided": observed_pb2.ApprovalDecidedEvent,
        "budget.reached": observed_pb2.BudgetReachedEvent,
        "budget.changed": observed_pb2.BudgetChangedEvent,
        "files.published": observed_pb2.FilesPublishedEvent,
        "transcript.compacted": observed_pb2.AfterCompactionEvent,
    }
    for name, text in rows[:-1]:
        fields = {one.name for one in messages[name].DESCRIPTOR.fields} - {"summary"}
        assert {*re.findall(r"`([a-z_]+)`", text)} == fields, name
    assert len(webhook_pb2.WebhookEventType.keys()) == len(rows) + 1
