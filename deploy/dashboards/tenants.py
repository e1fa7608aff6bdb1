"""Tenants, by class: what they use, and what holds them back. No metric names a single tenant."""

from deploy.dashboards.chart import tenants_reasons
from deploy.dashboards.parts import (
    Board,
    Panel,
    Query,
    Row,
    Shape,
    Variable,
    increase,
    rate,
    selector,
    top,
    total,
)

_TOKENS = "spawnmesh_model_router_tokens_total"
_COST = "spawnmesh_model_router_cost_total"
_CLASS = 'spawnmesh_tenant_class=~"$tenant_class"'
_AGENT = 'gen_ai_agent_name=~"$agent"'
_CALLS = "rpc_server_call_duration_seconds_count"
_OWN = f'error_type=~"{tenants_reasons()}"'

_USE = Row(
    "Which class of tenants uses what?",
    [
        Panel(
            "Tokens, by class",
            "Charged input and output in a second. `none` are tenants without a class.",
            [
                Query(
                    total(
                        rate(_TOKENS, _CLASS, 'gen_ai_token_type=~"input|output"'), "spawnmesh_tenant_class"
                    ),
                    "{{spawnmesh_tenant_class}}",
                )
            ],
            shape=Shape.STACKED,
        ),
        Panel(
            "Cost in an hour, by class",
            "In the currency of the prices. `spawnmesh spend` has the single tenants.",
            [
                Query(
                    f"{total(increase(_COST, _CLASS), 'spawnmesh_tenant_class')} / 1e6",
                    "{{spawnmesh_tenant_class}}",
                )
            ],
            shape=Shape.STACKED,
        ),
        Panel(
            "Cost in the shown time, by class and model",
            "The ten largest.",
            [
                Query(
                    top(
                        10,
                        total(
                            increase(_COST, _CLASS, window="$__range"),
                            "spawnmesh_tenant_class",
                            "gen_ai_request_model",
                        )
                        + " / 1e6",
                    ),
                    "{{spawnmesh_tenant_class}} {{gen_ai_request_model}}",
                )
            ],
            shape=Shape.NUMBER,
        ),
    ],
)

_AGENTS = Row(
    "Which agents use it?",
    [
        Panel(
            "Tokens, by agent",
            "The ten largest, in a second. `other` are the agents beyond the first hundred of a process or"
            " the first ten of a tenant; `none` are calls without a run.",
            [
                Query(
                    top(
                        10,
                        total(rate("spawnmesh_model_router_agent_tokens_total", _AGENT), "gen_ai_agent_name"),
                    ),
                    "{{gen_ai_agent_name}}",
                )
            ],
            width=12,
        ),
        Panel(
            "Cost in an hour, by agent and model",
            "The ten largest, in the currency of the prices.",
            [
                Query(
                    top(
                        10,
                        total(
                            increase("spawnmesh_model_router_agent_cost_total", _AGENT),
                            "gen_ai_agent_name",
                            "gen_ai_request_model",
                        )
                        + " / 1e6",
                    ),
                    "{{gen_ai_agent_name}} {{gen_ai_request_model}}",
                )
            ],
            width=12,
        ),
    ],
)

_LIMITS = Row(
    "What holds tenants back?",
    [
        Panel(
            "Calls that limits refused",
            "By class of RPCs and by limit, in an hour. The log event calls_limited names the tenant. See"
            " docs/howto/limits.md.",
            [
                Query(
                    total(
                        increase("spawnmesh_calls_limited_total"), "spawnmesh_rpc_class", "spawnmesh_limit"
                    ),
                    "{{spawnmesh_rpc_class}} {{spawnmesh_limit}}",
                )
            ],
        ),
        Panel(
            "Refused calls",
            "The ten most frequent reasons of refusals, in an hour.",
            [Query(top(10, total(increase(_CALLS, 'error_type!=""'), "error_type")), "{{error_type}}")],
        ),
        Panel(
            "Runs that ended for a reason of their tenant",
            "In an hour: budgets, limits, denied or expired approvals, agents that do not exist. None of them"
            " counts against the objectives.",
            [
                Query(
                    total(
                        increase("spawnmesh_session_runs_ended_total", 'error_type!=""', _OWN), "error_type"
                    ),
                    "{{error_type}}",
                )
            ],
        ),
    ],
)

_WAITS = Row(
    "Which runs wait for their tenants?",
    [
        Panel(
            "Runs that wait for a person or a budget",
            "They hold no slot of a runner.",
            [
                Query(
                    "max by (spawnmesh_session_run_state) ("
                    + selector(
                        "spawnmesh_session_runs",
                        'spawnmesh_session_run_state=~"waiting_approval|waiting_budget"',
                    )
                    + ")",
                    "{{spawnmesh_session_run_state}}",
                )
            ],
            width=12,
        ),
        Panel(
            "Watchers of sessions",
            "Open streams of people and programs of tenants.",
            [
                Query(
                    total(selector("spawnmesh_watches", 'rpc_method=~".*/WatchSession"'), "component"),
                    "{{component}}",
                )
            ],
            width=12,
        ),
    ],
)

BOARD = Board(
    "spawnmesh-tenants",
    "Spawnmesh: tenants",
    "What classes of tenants and agents use, and what holds them back.",
    [_USE, _AGENTS, _LIMITS, _WAITS],
    [
        Variable("tenant_class", "Class", _COST, "spawnmesh_tenant_class"),
        Variable("agent", "Agent", "spawnmesh_model_router_agent_cost_total", "gen_ai_agent_name"),
    ],
)
