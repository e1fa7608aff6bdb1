"""A session that changes while its page is made, and an answer that is lost."""

from typing import Any

import pytest
from spawnmesh_client.session import Session
from spawnmesh_console.pages import session as session_page
from spawnmesh_core.errors import unavailable

from tests.support.console.html import read_html
from tests.support.console.in_process import open_in_process
from tests.support.console.said import ended_session
from tests.support.console.visitors import ConsoleTenant, read


async def test_message_that_may_have_been_lost_stays_in_the_form(
    tenant: ConsoleTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await ended_session(tenant.mesh)
    path = f"/sessions/{session.session_id}"
    async with open_in_process(tenant) as client:
        fields = (await read(client, path)).form(f"{path}/message").fields
        fields["text"] = "Once, please."

        async def lost(*_: object, **__: object) -> None:
            raise unavailable("session")

        with monkeypatch.context() as patch:
            patch.setattr(Session, "send", lost)
            answer = await client.post(f"{path}/message", data=fields)
        assert answer.status_code == 503
        page = read_html(answer.text)
        again = page.form(f"{path}/message").fields
        assert (again["text"], again["request_id"]) == ("Once, please.", fields["request_id"])
        assert "it is taken once" in page.text
        for _ in range(2):
            assert (await client.post(f"{path}/message", data=again)).status_code == 303
    await session.result(120)
    messages = [entry.text async for entry in session.transcript() if entry.role == "USER"]
    assert messages.count("Once, please.") == 1


@pytest.mark.parametrize("part", ["_events", "_transcript", "_family"])
async def test_end_while_the_page_is_made_is_on_it(
    tenant: ConsoleTenant, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Otherwise the page would say for ever that the session is open."""
    session = await ended_session(tenant.mesh)
    read_part: Any = getattr(session_page, part)

    async def kill_and_read(*arguments: Any) -> Any:
        found = await read_part(*arguments)
        await session.kill()
        return found

    monkeypatch.setattr(session_page, part, kill_and_read)
    async with open_in_process(tenant) as client:
        page = await read(client, f"/sessions/{session.session_id}")
    assert {form.action for form in page.forms} == {"/sign-out"}, "a closed session takes nothing"
    assert not [one for one in page.tags("ol") if "data-live" in one]
