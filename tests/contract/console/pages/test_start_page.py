"""People spawn sessions in the console, with files, once for each form."""

import ast
import asyncio
import re
from pathlib import Path

import httpx2
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_client.client import Mesh, connect
from spawnmesh_client.resource_views import Agent
from spawnmesh_runtime.caller import ClientRole
from spawnmesh_runtime.settings import MIB

from tests.support.console.html import Form, read_html
from tests.support.console.visitors import ConsoleTenant, SignedIn, form_key, read

Files = list[tuple[str, tuple[str, bytes, str]]]

NO_FILE: Files = [("files", ("", b"", "application/octet-stream"))]
"""A browser sends this for a field in which no file was chosen."""

HOSTILE = "</pre><script>alert(1)</script> \" ' \\ $(id) \u202e\x1b[31m"


async def form(client: httpx2.AsyncClient) -> Form:
    return (await read(client, "/start")).form("/start")


async def send(
    client: httpx2.AsyncClient, form: Form, files: Files = NO_FILE, **fields: str
) -> httpx2.Response:
    """Send the form with other values in these fields."""
    return await client.post("/start", data={**form.fields, **fields}, files=files)


async def spawned(mesh: Mesh) -> list[str]:
    return [session.session_id async for session in mesh.sessions()]


async def test_a_session_is_spawned_with_the_bytes_of_its_files(
    signed_in: SignedIn, tenant: ConsoleTenant, tmp_path: Path
) -> None:
    await _allow_large_files(tenant)
    await tenant.mesh.agents.put(Agent("clerk", system_prompt="You sum up."))
    client = await signed_in(ClientRole.USER)
    first = await form(client)
    small, large = bytes(range(256)), b"0123456789abcdef" * (3 * MIB // 16)
    answer = await send(
        client,
        first,
        [
            ("files", ("grüße 漢.bin", small, "application/octet-stream")),
            ("files", ("large.csv", large, "text/csv")),
            *NO_FILE,
        ],
        task="Sum up\r\nthe files.",
        agent="clerk",
        model="scripted/agent",
        label="by form",
        open="yes",
    )
    assert answer.status_code == 303, read_html(answer.text).text
    (session_id,) = await spawned(tenant.mesh)
    assert answer.headers["location"] == f"/sessions/{session_id}"
    session = await tenant.mesh.session(session_id)
    assert (session.agent_id, session.label, session.mode) == ("clerk", "by form", "SESSION")
    assert session.receipt is not None
    assert {file.name: file.mime_type for file in session.receipt.files} == {
        "grüße 漢.bin": "application/octet-stream",
        "large.csv": "text/csv",
    }
    for name, data in (("grüße 漢.bin", small), ("large.csv", large)):
        path = await tenant.mesh.files.download(session.receipt.set_id, name, tmp_path)
        assert path.read_bytes() == data
    assert "Sum up\nthe files." in [entry.text async for entry in session.transcript()]


async def _allow_large_files(tenant: ConsoleTenant) -> None:
    stack = tenant.console.stack
    settings = TenantSettings()
    settings.attachments.enabled = True
    settings.attachments.max_file_count = 50
    settings.attachments.max_file_bytes = 8 * MIB
    settings.attachments.max_total_bytes = 16 * MIB
    async with connect(targets=stack.targets, token=stack.admin_token()) as operator:
        await operator.tenants.update(tenant.tenant_id, ["settings.attachments"], settings=settings)


async def test_a_form_that_is_sent_twice_spawns_once(signed_in: SignedIn, mesh: Mesh) -> None:
    client = await signed_in()
    first = await form(client)
    file: Files = [("files", ("a.txt", b"hello", "text/plain"))]
    answers = await asyncio.gather(*(send(client, first, file, task="Say hello.") for _ in range(2)))
    answers.append(await send(client, first, file, task="Say hello."))
    (session_id,) = await spawned(mesh)
    assert {answer.headers["location"] for answer in answers} == {f"/sessions/{session_id}"}

    changed = await send(client, first, file, task="Say goodbye.")
    page = read_html(changed.text)
    assert changed.status_code == 409
    assert "This form was sent before, with other contents" in page.text
    assert await spawned(mesh) == [session_id]
    again = await client.post("/start", data=page.form("/start").fields)
    assert again.headers["location"] != f"/sessions/{session_id}"
    assert len(await spawned(mesh)) == 2


async def test_a_refused_form_keeps_its_input(signed_in: SignedIn, mesh: Mesh) -> None:
    client = await signed_in()
    first = await form(client)
    task = f"\n\nSum up {HOSTILE}"
    given = {"task": task, "label": 'a "label"', "open": "yes", "agent": "missing <b>"}
    refused = await send(client, first, **given)
    page = read_html(refused.text)
    assert refused.status_code == 409
    assert "missing <b>" in page.text
    kept = page.form("/start").fields
    assert kept["task"].removeprefix("\n") == task
    assert (kept["label"], kept["open"], kept["agent"]) == ('a "label"', "yes", "missing <b>")
    assert kept["request_id"] != first.fields["request_id"], "the first one remembers the failure"
    assert all(one["src"].startswith("/static/") for one in page.tags("script"))

    refused = await send(
        client, first, [("files", ("large.bin", bytes(2 * MIB), "text/plain"))], task="Sum up."
    )
    text = read_html(refused.text).text
    assert refused.status_code == 400
    assert "large.bin: a file is larger than the tenant's limit: 1.0 MiB" in text
    assert "Choose them again: large.bin" in text
    assert "There is no task" in read_html((await send(client, first, task=" \n")).text).text
    assert await spawned(mesh) == []


async def test_the_page_says_which_role_spawns_and_what_comes_first(
    signed_in: SignedIn, tenant: ConsoleTenant
) -> None:
    user, reader = await signed_in(ClientRole.USER), await signed_in(ClientRole.READER)
    page = await read(reader, "/start")
    assert "Spawning needs the role user, and your token has the role reader" in page.text
    assert [one.action for one in page.forms] == ["/sign-out"]
    sent = {"form_key": await form_key(reader), "task": "Say hello."}
    assert (await reader.post("/start", data=sent)).status_code == 403
    for key in ("", "x", await form_key(reader)):
        answer = await user.post("/start", data={"form_key": key, "task": "Say hello."})
        assert answer.status_code == 403
    assert await spawned(tenant.mesh) == []

    assert "this is the first one" in (await read(user, "/start")).text
    await tenant.mesh.spawn("Say hello.")
    assert "this is the first one" not in (await read(user, "/start")).text


async def test_the_code_follows_the_form_and_stays_text(signed_in: SignedIn) -> None:
    client = await signed_in()
    sent = {
        "form_key": await form_key(client),
        "task": HOSTILE,
        "agent": "default",
        "file": ["a.txt", "b c.txt"],
    }
    answer = await client.post("/start/code", data=sent)
    code = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert list(code) == ["Python", "TypeScript", "curl", "Command"]
    for text in code.values():
        assert not {"\u202e", "\x1b"} & {*text}
        assert "a.txt" in text
        assert "default" not in text
    literals = [node.value for node in ast.walk(ast.parse(code["Python"])) if isinstance(node, ast.Constant)]
    assert HOSTILE in literals
    page = await client.get("/start", params={"task": HOSTILE})
    assert re.findall(r"<script>|\u202e.*\u202e", page.text) == []
    assert (await client.post("/start/code", data={"task": "x"})).status_code == 403
