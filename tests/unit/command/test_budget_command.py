"""The command `spawnmesh budget`, and how other commands say that a run waits for its budget."""

import json
from datetime import timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import budget_pb2, session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.command.budgets import used_up
from tests.support.command.fake_mesh import SESSION_ID, FakeMesh, mesh, session_in, unset

__all__ = ["mesh", "unset"]

PARENT_ID = "ses_00000000000000000000000000"
RAISE = (
    f"waits for its budget: cost 0.52 of 0.50 used; raise it: spawnmesh budget {SESSION_ID} --set cost=1.00\n"
)
SHORT = f"waits for its budget: spawnmesh budget {SESSION_ID}\n"


def waiting_session() -> session_pb2.Session:
    return session_in(session_pb2.RUN_STATE_WAITING_BUDGET, budget_session_id=SESSION_ID)


def waits(mesh: FakeMesh, *budgets: budget_pb2.SessionBudget) -> None:
    """Let the run of the session wait for these budgets."""
    mesh.sessions.known, mesh.sessions.outcome = [waiting_session()], waiting_session()
    mesh.budgets.usage.budgets.extend(budgets)


async def test_spawn_sends_the_budget_as_it_is_typed(mesh: FakeMesh) -> None:
    every = "cost=0.50,tokens=200000,calls=40,time=1h30m,wait=2d"
    for text in (every, "calls=1, wait=0s", ""):
        assert (await mesh.run("spawn", "Work.", "--budget", text)).exit_code == 0
    first, second, third = (one for one in mesh.sessions.requests if hasattr(one, "task"))
    assert first.budget == budget_pb2.Budget(
        max_cost_micros=500_000, max_token_count=200_000, max_model_call_count=40,
        max_run_time=Duration(seconds=5400), max_wait=Duration(seconds=172_800),
    )  # fmt: skip
    assert (second.budget.max_model_call_count, second.budget.HasField("max_wait")) == (1, True)
    assert (second.budget.max_wait, third.HasField("budget")) == (Duration(), False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cost", "'cost' is no limit of its own; write such as cost=0.50,tokens=200000,calls=40,time=10m"),
        ("price=1", "'price=1' is no limit of its own"),
        ("calls=1,calls=2", "'calls=2' is no limit of its own"),
        ("calls=1,", "'' is no limit of its own"),
        ("cost=0", "cost is a number above 0 with at most six decimals, such as 0.50, not '0'"),
        ("cost=-1", "cost is a number above 0"),
        ("cost=nan", "cost is a number above 0"),
        ("cost=1e30", "cost is a number above 0"),
        ("cost=1E-400000000", "cost is a number above 0"),
        ("cost=0.0000001", "cost is a number above 0"),
        ("cost=0,5", "cost is a number above 0"),
        ("tokens=0", "tokens is a whole number above 0, not '0'"),
        ("tokens=1.5", "tokens is a whole number above 0"),
        ("tokens=9223372036854775808", "tokens is a whole number above 0"),
        ("calls=x", "calls is a whole number above 0"),
        ("calls=none", "calls is a whole number above 0, not 'none'"),
        ("time=10", "time is a time above 0 and up to 365d, such as 90s, 10m or 1h30m, not '10'"),
        ("time=0s", "time is a time above 0"),
        ("time=", "time is a time above 0"),
        ("time=366d", "time is a time above 0"),
        ("time=1m1h", "time is a time above 0"),
        ("calls=1,wait=31d", "wait is a time up to 30d, such as 90s, 10m or 2h, or 0s to fail at once"),
        ("calls=1,wait=", "wait is a time up to 30d, such as 90s, 10m or 2h, or 0s to fail at once, not ''"),
        ("wait=2h", "needs a limit beside wait: cost, tokens, calls or time"),
    ],
)
async def test_wrong_limit_is_refused_with_what_is_allowed(mesh: FakeMesh, text: str, said: str) -> None:
    result = await mesh.run("spawn", "Work.", "--budget", text)

    assert (result.exit_code, said in " ".join(result.stderr.replace("│", "").split())) == (2, True)
    assert mesh.sessions.requests == []


async def test_usage_has_a_row_for_the_session_its_family_and_each_budget(mesh: FakeMesh) -> None:
    usage, parents = mesh.budgets.usage, used_up(PARENT_ID)
    parents.budget.Clear()
    parents.budget.max_token_count, parents.budget.max_wait.seconds, parents.updated_by = 200_000, 90, ""
    usage.budgets.extend([parents, used_up(SESSION_ID)])
    usage.session.usage.input_token_count, usage.session.usage.output_token_count = 1200, 34
    usage.family.usage.cost_micros, usage.family.session_count, usage.family.ended_run_count = 1_234_560, 3, 5

    result = await mesh.run("budget", SESSION_ID)
    document = json.loads((await mesh.run("budget", SESSION_ID, "--json")).stdout)

    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[1] == "the session 1,234 0.00 0 0"
    assert lines[2] == "its family 0 1.23456 3 5"
    assert lines[5] == f"{PARENT_ID} 0.52 12,345 of 200,000 3 1m15s 1m30s"
    assert lines[6].startswith(f"{SESSION_ID} 0.52 of 0.50 12,345 3 of 40 1m15s of 10m 7d 1970-01-01")
    assert lines[6].endswith("by ada")
    assert [one["session_id"] for one in document["budgets"]] == [PARENT_ID, SESSION_ID]
    assert {one.session_id for one in mesh.budgets.requests} == {SESSION_ID}


async def test_session_without_a_budget_says_how_to_get_one(mesh: FakeMesh) -> None:
    mesh.budgets.usage.is_family_partial = True

    result = await mesh.run("budget", SESSION_ID)

    assert "its family (the first)" in result.stdout
    assert result.stdout.endswith("\nno budget: `spawnmesh spawn --budget` sets one\n")


async def test_set_changes_the_named_limits_alone(mesh: FakeMesh) -> None:
    mesh.budgets.usage.budgets.append(used_up(SESSION_ID))

    result = await mesh.run(
        "budget", SESSION_ID, "--set", "cost=1,wait=none", "--set", "calls=60", "--etag", "e1"
    )
    document = json.loads((await mesh.run("budget", SESSION_ID, "--set", "time=none", "--json")).stdout)

    assert "0.52 of 0.50" in result.stdout
    assert document["etag"] == "e1"
    first, second = mesh.budgets.requests
    assert list(first.update_mask.paths) == ["max_cost_micros", "max_wait", "max_model_call_count"]
    assert first.budget == budget_pb2.Budget(max_cost_micros=1_000_000, max_model_call_count=60)
    assert (first.session_id, first.etag) == (SESSION_ID, "e1")
    assert (list(second.update_mask.paths), second.budget) == (["max_run_time"], budget_pb2.Budget())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "cost=0"), "such as 0.50, or `none`, not '0'"),
        (("--set", ""), "'' is no limit of its own"),
        (("--etag", "e1"), "is for --set"),
    ],
)
async def test_wrong_change_is_refused_before_any_call(
    mesh: FakeMesh, options: tuple[str, ...], said: str
) -> None:
    result = await mesh.run("budget", SESSION_ID, *options)

    assert (result.exit_code, said in " ".join(result.stderr.replace("│", "").split())) == (2, True)
    assert mesh.budgets.requests == []


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        (Reason.BUDGET_MISSING, "spawn another one with --budget"),
        (Reason.BUDGET_BELOW_USAGE, "`spawnmesh budget SESSION_ID` shows what is used"),
        (Reason.SESSION_BUDGET_EXCEEDED, "raise it with `spawnmesh budget SESSION_ID --set …`"),
    ],
)
async def test_refusals_say_what_to_do(mesh: FakeMesh, reason: Reason, advice: str) -> None:
    mesh.budgets.refusal = MeshError(reason, "no", facts={"session_id": SESSION_ID})

    result = await mesh.run("budget", SESSION_ID, "--set", "calls=1")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: {reason}: no (session_id={SESSION_ID}). {advice}\n"


async def test_wait_says_what_is_used_up_and_how_to_raise_it(mesh: FakeMesh) -> None:
    waits(mesh, used_up(SESSION_ID))

    result = await mesh.run("spawn", "Work.", "--wait", "--timeout", "0")
    document = await mesh.run("wait", SESSION_ID, "--timeout", "0", "--json")

    assert result.exit_code == document.exit_code == 1
    assert (result.stderr.count(RAISE), "not done after 0 s" in result.stderr) == (1, True)
    assert result.stdout.endswith(SHORT)
    assert document.stderr == RAISE
    assert json.loads(document.stdout)["latest_run"]["budget_session_id"] == SESSION_ID


async def test_wait_names_every_budget_and_limit_with_the_double(mesh: FakeMesh) -> None:
    parents, own = used_up(PARENT_ID), used_up(SESSION_ID)
    del parents.reached_limits[:], own.reached_limits[:]
    parents.budget.max_cost_micros = 100_000
    parents.reached_limits.extend([budget_pb2.BUDGET_LIMIT_COST, budget_pb2.BUDGET_LIMIT_RUN_TIME])
    parents.usage.run_time.FromTimedelta(timedelta(minutes=10, milliseconds=20))
    own.budget.max_token_count, own.budget.max_run_time.seconds = 12_000, 9
    own.usage.model_call_count = 40
    own.usage.run_time.FromTimedelta(timedelta(seconds=20.5))
    own.reached_limits.extend(budget_pb2.BudgetLimit.values()[1:])
    waits(mesh, parents, used_up(PARENT_ID), own)
    del mesh.budgets.usage.budgets[1].reached_limits[:]

    result = await mesh.run("wait", SESSION_ID, "--timeout", "0", "--json")

    assert result.stderr == (
        "waits for its budget: cost 0.52 of 0.10 and time 10m of 10m used;"
        f" raise it: spawnmesh budget {PARENT_ID} --set cost=1.04,time=20m\n"
        "waits for its budget: tokens 12,345 of 12,000 and cost 0.52 of 0.50 and calls 40 of 40"
        " and time 20.5s of 9s used;"
        f" raise it: spawnmesh budget {SESSION_ID} --set tokens=24000,cost=1.00,calls=80,time=42s\n"
    )


@pytest.mark.parametrize("refusal", [None, MeshError(Reason.DEPENDENCY_UNAVAILABLE, "down")])
async def test_wait_names_the_session_if_its_budget_cannot_be_seen(
    mesh: FakeMesh, refusal: MeshError | None
) -> None:
    waits(mesh)
    mesh.budgets.refusal = refusal

    result = await mesh.run("wait", SESSION_ID, "--timeout", "0", "--json")

    assert result.stderr == SHORT


async def test_watch_says_how_to_raise_the_budget_while_the_run_waits(mesh: FakeMesh) -> None:
    mesh.sessions.events = [
        session_pb2.SessionEvent(
            number=1,
            kind=session_pb2.SESSION_EVENT_KIND_RUN,
            run_state=session_pb2.RUN_STATE_WAITING_BUDGET,
            detail="cost 0.52 of 0.50 used",
        )
    ]
    raised = await mesh.run("watch", SESSION_ID)
    waits(mesh, used_up(SESSION_ID))
    waiting = await mesh.run("watch", SESSION_ID)

    assert "RUN  WAITING_BUDGET  cost 0.52 of 0.50 used\n" in raised.stdout
    assert "--set" not in raised.stdout
    assert waiting.stdout == raised.stdout + RAISE


async def test_sessions_say_how_many_wait_for_a_budget(mesh: FakeMesh) -> None:
    mesh.sessions.known = [waiting_session(), session_in(session_pb2.RUN_STATE_RUNNING), waiting_session()]

    result = await mesh.run("sessions")

    assert result.stdout.count("WAITING_BUDGET") == 2
    assert result.stdout.endswith("runs that wait for a budget: 2; see `spawnmesh budget SESSION_ID`\n")


async def test_interrupt_of_a_waiting_run_says_that_it_ends(mesh: FakeMesh) -> None:
    mesh.sessions.interrupted = waiting_session().latest_run

    result = await mesh.run("interrupt", SESSION_ID)

    assert result.stdout.endswith("ends at its next safe point\n")
