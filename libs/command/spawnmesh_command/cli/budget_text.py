"""Budgets for people: the usage of a session, and what a run that waits for one needs."""

from collections.abc import Sequence
from datetime import timedelta

from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh.session.v1.session_pb2 import RUN_STATE_WAITING_BUDGET, Run
from spawnmesh_client.budget_texts import cost_text, limit_text, time_text
from spawnmesh_client.budgets import get_usage
from spawnmesh_client.token_peer import UnknownPeer
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError

from spawnmesh_command.cli.show import plain, print_table, waiting_line, when

_DEFAULT_WAIT = "7d"
_SECOND = 1_000_000_000


def print_usage(answer: pb.GetSessionUsageResponse) -> None:
    """Print what the session and its family have used in ended runs, and a row for each budget."""
    print_table(
        ("used by ended runs of", "tokens", "cost", "sessions", "ended runs"),
        (
            _total("the session", answer.session),
            _total("its family" + " (the first)" * answer.is_family_partial, answer.family),
        ),
    )
    if answer.budgets:
        print()
        _print_budgets(answer.budgets)
    else:
        print("\nno budget: `spawnmesh spawn --budget` sets one")


def print_budget(budget: pb.SessionBudget) -> None:
    """Print one budget."""
    _print_budgets([budget])


async def waiting_lines(mesh: WireMesh, run: Run) -> str:
    """Return what a run waits for and what to type, a line for each budget; else nothing."""
    if run.state != RUN_STATE_WAITING_BUDGET:
        return waiting_line(run)
    try:
        usage = await get_usage(mesh.service("session"), run.session_id)
    except (MeshError, UnknownPeer):  # A reader sees the session all the same.
        return waiting_line(run)
    reached = [one for one in usage.budgets if one.reached_limits]
    return "\n".join(map(_raise_line, reached)) or waiting_line(run)


def _raise_line(one: pb.SessionBudget) -> str:
    used = " and ".join(limit_text(one, limit) for limit in one.reached_limits)
    wanted = ",".join(_raised(one, limit) for limit in one.reached_limits)
    return plain(
        f"waits for its budget: {used} used; raise it: spawnmesh budget {one.session_id} --set {wanted}",
        keep="",
    )


def _raised(one: pb.SessionBudget, limit: "pb.BudgetLimit.ValueType") -> str:
    """Return the double of a limit, or of what is used if that is more, as `--set` takes it."""
    budget, usage = one.budget, one.usage
    match limit:
        case pb.BUDGET_LIMIT_COST:
            return f"cost={cost_text(_double(budget.max_cost_micros, usage.cost_micros))}"
        case pb.BUDGET_LIMIT_TOKENS:
            return f"tokens={_double(budget.max_token_count, usage.token_count)}"
        case pb.BUDGET_LIMIT_MODEL_CALLS:
            return f"calls={_double(budget.max_model_call_count, usage.model_call_count)}"
        case pb.BUDGET_LIMIT_RUN_TIME:
            seconds = [-(-time.ToNanoseconds() // _SECOND) for time in (budget.max_run_time, usage.run_time)]
            return f"time={time_text(timedelta(seconds=_double(*seconds)))}"
    return "…"


def _double(most: int, used: int) -> int:
    return 2 * most if used < 2 * most else 2 * used


def _total(name: str, total: pb.UsageTotal) -> tuple[str, ...]:
    usage = total.usage
    return (
        name,
        f"{usage.input_token_count + usage.output_token_count:,}",
        cost_text(usage.cost_micros),
        f"{total.session_count:,}",
        f"{total.ended_run_count:,}",
    )


def _print_budgets(budgets: Sequence[pb.SessionBudget]) -> None:
    print_table(
        ("budget of", "cost", "tokens", "calls", "time", "wait", "changed"),
        (_row(one) for one in budgets),
    )


def _row(one: pb.SessionBudget) -> tuple[str, ...]:
    budget, usage = one.budget, one.usage
    changed = f"{when(one.update_time)} by {one.updated_by}" if one.updated_by else ""
    return (
        one.session_id,
        _of(cost_text(usage.cost_micros), budget.max_cost_micros and cost_text(budget.max_cost_micros)),
        _of(f"{usage.token_count:,}", budget.max_token_count and f"{budget.max_token_count:,}"),
        _of(
            f"{usage.model_call_count:,}", budget.max_model_call_count and f"{budget.max_model_call_count:,}"
        ),
        _of(
            time_text(usage.run_time),
            budget.max_run_time.ToNanoseconds() and time_text(budget.max_run_time),
        ),
        time_text(budget.max_wait) if budget.HasField("max_wait") else _DEFAULT_WAIT,
        changed,
    )


def _of(used: str, most: "str | int") -> str:
    return f"{used} of {most}" if most else used
