"""Amounts of budgets for people: `cost 0.52 of 0.50`, `run time 9m of 10m`."""

from datetime import timedelta
from decimal import Decimal

from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import budget_pb2 as pb

_MICROS = 1_000_000
_UNITS = (("d", 86_400), ("h", 3600), ("m", 60))


def cost_text(micros: int) -> str:
    """Return a cost in units of the currency with two decimals, or as many more as it needs."""
    whole, _, part = f"{Decimal(micros) / _MICROS:.6f}".partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}"


def time_text(time: Duration | timedelta) -> str:
    """Return a time as it is typed: `90m` is `1h30m`. Parts of a second are left out from a minute
    on.
    """
    span = time.ToTimedelta() if isinstance(time, Duration) else time
    if span < timedelta(minutes=1):
        return f"{span.total_seconds():.3f}".rstrip("0").rstrip(".") + "s"
    left, parts = int(span.total_seconds()), []
    for unit, seconds in _UNITS:
        count, left = divmod(left, seconds)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) + (f"{left}s" if left else "")


def limit_text(one: pb.SessionBudget, limit: "pb.BudgetLimit.ValueType") -> str:
    """Return the name of a limit, and what is used of it: `cost 0.52 of 0.50`."""
    budget, usage = one.budget, one.usage
    match limit:
        case pb.BUDGET_LIMIT_COST:
            return f"cost {cost_text(usage.cost_micros)} of {cost_text(budget.max_cost_micros)}"
        case pb.BUDGET_LIMIT_TOKENS:
            return f"tokens {usage.token_count:,} of {budget.max_token_count:,}"
        case pb.BUDGET_LIMIT_MODEL_CALLS:
            return f"calls {usage.model_call_count:,} of {budget.max_model_call_count:,}"
        case pb.BUDGET_LIMIT_RUN_TIME:
            return f"time {time_text(usage.run_time)} of {time_text(budget.max_run_time)}"
    return "a limit that this client does not know"
