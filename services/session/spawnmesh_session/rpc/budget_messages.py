"""Budgets in the messages of the contract."""

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.session.v1 import budget_pb2 as pb
from spawnmesh_calls.wire_times import duration_of, timestamp_of
from spawnmesh_core.errors import invalid

from spawnmesh_session.domain.budgets import DEFAULT_WAIT, FamilyBudget, FamilyLimits, RunsTotal


def parse_limits(budget: pb.Budget) -> FamilyLimits:
    """Return the limits. An absent `max_wait` is the default.

    Raise INVALID_REQUEST for a time between 0 and a second.
    """
    return FamilyLimits(
        token_count=budget.max_token_count,
        cost_micros=budget.max_cost_micros,
        model_call_count=budget.max_model_call_count,
        run_time=_time("budget.max_run_time", budget.max_run_time),
        wait=_time("budget.max_wait", budget.max_wait) if budget.HasField("max_wait") else DEFAULT_WAIT,
    )


def _time(field: str, duration: Duration) -> timedelta:
    if duration.nanos and not duration.seconds:
        raise invalid(field, "is less than a second; give 0 or at least a second")
    return duration.ToTimedelta()


def parse_new_limits(budget: pb.Budget) -> FamilyLimits:
    """Return the limits of a spawn. Raise INVALID_REQUEST if nothing is limited."""
    limits = parse_limits(budget)
    if not limits.has_limit:
        raise invalid("budget", "has no limit; set one, or leave the budget out")
    return limits


def render_limits(limits: FamilyLimits) -> pb.Budget:
    """Render limits."""
    return pb.Budget(
        max_token_count=limits.token_count,
        max_cost_micros=limits.cost_micros,
        max_model_call_count=limits.model_call_count,
        max_run_time=duration_of(limits.run_time) if limits.run_time else None,
        max_wait=duration_of(limits.wait),
    )


def render_budget(budget: FamilyBudget) -> pb.SessionBudget:
    """Render a budget with what was used of it."""
    used = budget.used
    return pb.SessionBudget(
        session_id=budget.session_id,
        budget=render_limits(budget.limits),
        usage=pb.BudgetUsage(
            token_count=used.token_count,
            cost_micros=used.cost_micros,
            model_call_count=used.model_call_count,
            run_time=duration_of(used.run_time),
        ),
        reached_limits=[pb.BudgetLimit.Value(f"BUDGET_LIMIT_{kind.value}") for kind in budget.reached],
        etag=budget.etag,
        update_time=timestamp_of(budget.update_time),
        updated_by=budget.updated_by,
    )


def render_total(total: RunsTotal) -> pb.UsageTotal:
    """Render what runs have used."""
    return pb.UsageTotal(
        usage=TokenUsage(**total.usage),
        session_count=total.session_count,
        ended_run_count=total.ended_run_count,
    )
