"""Budgets in the console: what is used, a run that waits, and the form that raises a limit."""

import re

import httpx2
import pytest
from spawnmesh_client import Budget, RunState
from spawnmesh_client.client import Mesh
from spawnmesh_client.session import Session
from spawnmesh_runtime.caller import ClientRole

from tests.support.console.budgets import waiting_session
from tests.support.console.html import Form, Page, read_html
from tests.support.console.visitors import SignedIn, form_key, read
from tests.support.waiting import eventually


def path_of(session: Session, rest: str = "") -> str:
    return f"/sessions/{session.session_id}{rest}"


def form_of(page: Page, session: Session) -> Form:
    return page.form(path_of(session, "/budget"))


async def calls_of(session: Session) -> tuple[int, int | None]:
    """Return the model calls of the session's own budget: those that were made, and the limit."""
    budget = (await session.usage()).budgets[-1]
    return budget.usage.calls, budget.budget.calls


async def test_a_run_that_waits_says_so_and_goes_on_when_the_form_is_sent(
    mesh: Mesh, signed_in: SignedIn
) -> None:
    session = await waiting_session(mesh)
    client = await signed_in(ClientRole.USER)
    page = await read(client, path_of(session))
    assert "waits for its budget" in page.text
    assert "The run waits until its budget has room." in page.text
    assert "Model calls 1 of 1 reached" in page.text
    assert "It waits for at most 7 days, and fails then." in page.text
    bars = [one["aria-label"] for one in page.tags("svg") if "used" in one.get("aria-label", "")]
    assert bars == ["Model calls: 1 of 1 used"]
    assert [one["width"] for one in page.tags("rect") if one.get("class") == "used"] == ["100.0"]

    form = form_of(page, session)
    assert {name: value for name, value in form.fields.items() if name.startswith("limit_")} == {
        "limit_cost": "",
        "limit_tokens": "",
        "limit_calls": "1",
        "limit_time": "",
    }
    answer = await client.post(form.action, data={**form.fields, "limit_calls": "7"})
    assert (answer.status_code, answer.headers["location"]) == (303, path_of(session, "?done=budget"))
    assert (await session.result(120)).text
    assert await calls_of(session) == (2, 7)
    page = await read(client, path_of(session, "?done=budget"))
    assert "The limits were changed. Runs that waited for room go on." in page.text
    assert re.search(r"The limits of the budget were changed\. model calls 1 -> 7 by \S+", page.text)
    assert "Model calls 2 of 7" in page.text
    assert "reached" not in page.text
    assert re.search(r"Changed by ada ", page.text)


async def test_the_list_shows_and_filters_runs_that_wait(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await waiting_session(mesh)
    await mesh.spawn("Say hello.")
    client = await signed_in(ClientRole.READER)
    page = await read(client, "/sessions?state=WAITING_BUDGET")
    assert [link for link in page.links if link.startswith("/sessions/ses_")] == [path_of(session)]
    assert "waits for its budget" in page.text


async def test_a_reader_sees_the_budget_and_cannot_change_it(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await waiting_session(mesh)
    client = await signed_in(ClientRole.READER)
    page = await read(client, path_of(session))
    assert "Model calls 1 of 1 reached" in page.text
    assert "Raising it needs the role user." in page.text
    assert path_of(session, "/budget") not in {form.action for form in page.forms}
    sent = {"form_key": await form_key(client), "limit_calls": "7"}
    refused = await client.post(path_of(session, "/budget"), data=sent)
    assert (refused.status_code, "ROLE_MISSING" in refused.text) == (403, True)
    assert await calls_of(session) == (1, 1)


async def test_a_form_of_another_site_changes_nothing(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await waiting_session(mesh)
    client = await signed_in()
    stranger = await signed_in()
    for key in ("", "x", await form_key(stranger)):
        answer = await client.post(path_of(session, "/budget"), data={"form_key": key, "limit_calls": "7"})
        assert answer.status_code == 403
    assert await calls_of(session) == (1, 1)


@pytest.mark.parametrize(
    ("sent", "status", "problem"),
    [
        ({"limit_calls": "many"}, 400, "Write the model calls as a whole number, such as 200000."),
        ({"limit_cost": "-1"}, 400, "Write the cost as a number, such as 0.50"),
        ({"limit_time": "10"}, 400, "Write the run time with its units"),
        ({"limit_calls": "1"}, 400, "These are the limits already."),
        ({"limit_tokens": "1", "limit_calls": "9"}, 409, "tokens 1 is below"),
    ],
)
async def test_limits_that_are_refused_stay_in_the_form(
    mesh: Mesh, signed_in: SignedIn, sent: dict[str, str], status: int, problem: str
) -> None:
    session = await waiting_session(mesh)
    client = await signed_in()
    form = form_of(await read(client, path_of(session)), session)
    answer = await client.post(form.action, data={**form.fields, **sent})
    page = read_html(answer.text)
    assert answer.status_code == status, page.text
    assert problem in page.text
    kept = form_of(page, session).fields
    assert {name: kept[name] for name in sent} == sent
    assert await calls_of(session) == (1, 1)


async def test_of_two_people_the_second_one_sees_the_limits_of_the_first(
    mesh: Mesh, signed_in: SignedIn
) -> None:
    # It waits for tokens too, so it still waits when the calls are raised.
    session = await waiting_session(mesh, budget=Budget(calls=1, tokens=1))
    clients: list[httpx2.AsyncClient] = [await signed_in(), await signed_in()]
    forms = [form_of(await read(client, path_of(session)), session) for client in clients]
    first = await clients[0].post(forms[0].action, data={**forms[0].fields, "limit_calls": "50"})
    assert first.status_code == 303
    second = await clients[1].post(forms[1].action, data={**forms[1].fields, "limit_calls": "20"})
    page = read_html(second.text)
    assert second.status_code == 409
    assert "The limits were changed while you wrote." in page.text
    assert (await calls_of(session))[1] == 50
    again = form_of(page, session)
    assert again.fields["limit_calls"] == "20"
    assert (await clients[1].post(again.action, data=again.fields)).status_code == 303
    assert (await calls_of(session))[1] == 20


async def test_a_child_shows_the_budget_of_its_parent_and_leads_to_it(
    mesh: Mesh, signed_in: SignedIn
) -> None:
    parent = await mesh.spawn("Say hello.", mode="SESSION", budget=Budget(calls=2, tokens=10**9))
    await parent.result(120)
    child = await mesh.spawn("Say hello.", parent=parent, mode="SESSION", budget=Budget(calls=50))
    await child.result(120)
    await child.send("And now say goodbye.")

    async def waits() -> bool:
        run = (await child.refresh()).latest_run
        return run is not None and run.state is RunState.WAITING_BUDGET

    await eventually(waits, within_seconds=120)
    client = await signed_in()
    page = await read(client, path_of(child))
    assert path_of(parent) in page.links
    assert re.search(rf"Budget of {parent.session_id} .*2 of 2 reached.* Budget of this session", page.text)
    forms = [form for form in page.forms if form.action == path_of(child, "/budget")]
    budgets = [form.fields["budget_session_id"] for form in forms]
    assert budgets == [parent.session_id, child.session_id]
    answer = await client.post(forms[0].action, data={**forms[0].fields, "limit_calls": "30"})
    assert answer.headers["location"] == path_of(child, "?done=budget")
    await child.result(120)
    raised = (await parent.usage()).budgets[0].budget
    assert (raised.calls, raised.tokens) == (30, 10**9)
    page = await read(client, path_of(parent))
    assert "The ended runs of this session and its descendants, 2 sessions, have used" in page.text


async def test_a_session_without_a_budget_has_no_bars(mesh: Mesh, signed_in: SignedIn) -> None:
    session = await mesh.spawn("Say hello.", mode="SESSION")
    await session.result(120)
    client = await signed_in()
    page = await read(client, path_of(session))
    assert not [one for one in page.tags("section") if one.get("aria-label") == "Budgets"]
    sent = {"form_key": await form_key(client), "limit_calls": "7"}
    answer = await client.post(path_of(session, "/budget"), data=sent)
    assert (answer.status_code, "spawned without a budget" in read_html(answer.text).text) == (409, True)


async def test_a_session_is_spawned_with_the_budget_of_the_form(mesh: Mesh, signed_in: SignedIn) -> None:
    client = await signed_in(ClientRole.USER)
    form = (await read(client, "/start")).form("/start")
    given = {"task": "Say hello.", "limit_cost": "0.50", "limit_tokens": "200,000", "limit_time": "1h30m"}
    wrong = await client.post("/start", data={**form.fields, **given, "limit_calls": "many"})
    page = read_html(wrong.text)
    assert (wrong.status_code, "Write the model calls as a whole number" in page.text) == (400, True)
    kept = page.form("/start")
    assert (kept.fields["limit_calls"], kept.fields["limit_cost"]) == ("many", "0.50")
    answer = await client.post("/start", data={**kept.fields, "limit_calls": "40"})
    assert answer.status_code == 303, read_html(answer.text).text
    session = await mesh.session(answer.headers["location"].removeprefix("/sessions/"))
    (own,) = (await session.usage()).budgets
    assert (own.budget.cost, own.budget.tokens, own.budget.calls) == (0.5, 200_000, 40)
    assert own.budget.run_time is not None
    assert own.budget.run_time.total_seconds() == 5400  # type: ignore[union-attr]
    page = await read(client, path_of(session))
    assert "of 0.50" in page.text
    assert "of 200,000" in page.text
    assert "of 1 h 30 min" in page.text
