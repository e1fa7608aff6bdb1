"""The commands and the program of docs/howto/approvals.md work unchanged."""

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import ROOT, shell
from tests.support.waiting import eventually

SET_UP, LIST, APPROVE, DENY, ANSWER, ESCALATE = typed("docs/howto/approvals.md")
(PROGRAM,) = typed("docs/howto/approvals.md", "python")
HTTP_PAGE = (ROOT / "docs" / "howto" / "http.md").read_text()
TENANT = "page-of-approvals"


class Person:
    """A person who types the commands of the page for a tenant of this test."""

    def __init__(self, stack: Stack, folder: Path, tenant: str) -> None:
        self._stack = stack
        self._folder = folder
        self._tenant = tenant

    async def type(self, commands: str, approval_id: str = "") -> str:
        typed = commands.replace("acme", self._tenant).replace("apr_…", approval_id)
        return await shell(f"export SPAWNMESH_TENANT={self._tenant}\n{typed}", self._stack, self._folder)

    async def asked(self) -> str:
        """Return the id of the pending approval, once there is one."""
        listed = await eventually(partial(self.listed, ""))
        (approval,) = listed
        return str(approval["approval_id"])

    async def listed(self, option: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            await self.type(f"spawnmesh approvals list --json {option}")
        )["approvals"]
        return found

    async def messages(self, webhook: str) -> list[dict[str, Any]]:
        printed = await self.type(f"spawnmesh webhook deliveries {webhook} --json")
        found: list[dict[str, Any]] = json.loads(printed)["deliveries"]
        return found

    async def told(self) -> str:
        """Return the answer of the newest session, once its run has ended."""
        (newest,) = json.loads(await self.type("spawnmesh sessions --limit 1 --json"))["sessions"]
        return await self.type(f"spawnmesh wait {newest['session_id']}")


async def test_commands_work_as_they_are_typed(stack: Stack, tmp_path: Path) -> None:
    person = Person(stack, tmp_path, TENANT)
    await person.type(SET_UP)
    first = await person.asked()
    listed = await person.type(LIST)
    for shown in (first, "min left", "clerk", "write_file", "Dear Ada,", "the agent's policy"):
        assert shown in listed
    printed = await person.type(APPROVE, first)
    assert '"content": "Dear Ada,"' in printed
    assert "approved; run_" in printed
    told = await person.told()
    assert hashlib.sha256(b"Dear Bob,").hexdigest() in told.replace("\n", "")

    spawn, deny = DENY.splitlines()
    await person.type(spawn)
    await person.type(deny, await person.asked())
    assert "Write to one person." in await person.told()

    spawn, answer = ANSWER.splitlines()
    await person.type(spawn)
    await person.type(answer, await person.asked())
    assert "blue" in await person.told()
    decided = {one["state"].removeprefix("APPROVAL_STATE_") for one in await person.listed("--all")}
    assert decided == {"APPROVED", "DENIED", "ANSWERED"}


async def test_an_approval_that_no_person_decides_is_escalated_and_then_denied(
    stack: Stack, tmp_path: Path
) -> None:
    person = Person(stack, tmp_path, f"{TENANT}-3")
    policy = '"timeout": "1s", "on_expiry": "EXPIRY_POLICY_ESCALATE"'
    assert '"timeout": "3600s"' in SET_UP
    agent, word, spawn = SET_UP.replace('"timeout": "3600s"', policy).partition("spawnmesh spawn")
    await person.type(agent)
    await person.type(ESCALATE)
    await person.type(word + spawn)
    assert "DENIED: no person decided in time" in await person.told()
    (approval,) = await person.listed("--state expired")
    assert approval["on_expiry"] == "EXPIRY_POLICY_ESCALATE"
    assert approval["create_time"] < approval["escalate_time"] < approval["expire_time"]
    (message,) = await eventually(partial(person.messages, "duty"))
    assert message["event_type"] == "WEBHOOK_EVENT_TYPE_APPROVAL_ESCALATED"


@pytest.mark.usefixtures("gateway")
async def test_program_and_http_decide_too(stack: Stack, tmp_path: Path) -> None:
    person = Person(stack, tmp_path, f"{TENANT}-2")
    await person.type(SET_UP)
    await person.asked()
    script = tmp_path / "decide.py"
    script.write_text(PROGRAM)
    await person.type(f"SPAWNMESH_TOKEN=$(spawnmesh token) python {script}")
    (approved,) = await person.listed("--state approved")
    assert approved["edited_arguments_json"] == ""

    await person.type(ANSWER.splitlines()[0])
    approval_id = await person.asked()
    decide, body = "approvals/apr_…:decide", '{"answer": {"text": "blue"}}'
    assert decide in HTTP_PAGE
    assert body in HTTP_PAGE
    listed = await person.type(curl(stack, "approvals?state=APPROVAL_STATE_PENDING"))
    assert json.loads(listed)["approvals"][0]["question"]["choices"] == ["red", "blue"]
    decided = json.loads(await person.type(curl(stack, decide, body), approval_id))
    assert decided["approval"]["state"] == "APPROVAL_STATE_ANSWERED"
    assert decided["run"]["run_id"] == decided["approval"]["run_id"]


def curl(stack: Stack, path: str, body: str = "") -> str:
    address = json.loads((stack.data_dir / "mesh.json").read_text())["gateway"]
    sent = f"--json '{body}'" if body else ""
    token = '--header "authorization: Bearer $(spawnmesh token)"'
    return f"curl --silent --fail-with-body 'http://{address}/v1/{path}' {token} {sent}"
