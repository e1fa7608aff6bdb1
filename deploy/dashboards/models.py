"""Models: whether they answer, and what they use."""

from deploy.dashboards.parts import (
    Board,
    Panel,
    Query,
    Row,
    Shape,
    Unit,
    Variable,
    increase,
    quantile,
    rate,
    share,
    total,
)

_CALLS = "gen_ai_client_operation_duration_seconds"
_TOKENS = "spawnmesh_model_router_tokens_total"
_COST = "spawnmesh_model_router_cost_total"
_MODEL = 'gen_ai_request_model=~"$model"'
_NAME = "{{gen_ai_request_model}}"
_ALL = rate(f"{_CALLS}_count", _MODEL)
_FAILED = rate(f"{_CALLS}_count", _MODEL, 'error_type!=""')
_INPUT = rate(_TOKENS, _MODEL, 'gen_ai_token_type="input"')
_CACHED = rate(_TOKENS, _MODEL, 'gen_ai_token_type="cache_read"')
_PROVIDER = 'spawnmesh_model_router_provider=~"$provider"'


def _of_model(expression: str) -> str:
    return total(expression, "gen_ai_request_model")


_ANSWERS = Row(
    "Do models answer, and how fast?",
    [
        Panel(
            "Calls of models",
            "Every call of a provider, also those after which another candidate was called.",
            [Query(_of_model(_ALL), _NAME)],
            Unit.PER_SECOND,
            Shape.STACKED,
        ),
        Panel(
            "Share of calls that failed",
            "By model. A run notices it only if no other candidate answers. Runbook: models-fail.md.",
            [Query(share(_of_model(_FAILED), _of_model(_ALL)), _NAME)],
            Unit.SHARE,
        ),
        Panel(
            "Duration of calls, p95",
            "From the request to the last token. A dot is a call with its trace.",
            [
                Query(
                    quantile(0.95, _CALLS, _MODEL, by=["gen_ai_request_model"]),
                    "{{gen_ai_request_model}}",
                    exemplars=True,
                )
            ],
            Unit.SECONDS,
        ),
    ],
)

_FAILOVERS = Row(
    "Which models fail, why, and what is called instead?",
    [
        Panel(
            "Failed calls, by reason",
            "An operator repairs AUTH (a key) and BILLING (an account). Runbook: models-fail.md.",
            [
                Query(
                    total(
                        rate("spawnmesh_model_router_attempts_total", _PROVIDER, 'error_type!=""'),
                        "spawnmesh_model_router_provider",
                        "error_type",
                    ),
                    "{{spawnmesh_model_router_provider}} {{error_type}}",
                )
            ],
            Unit.PER_SECOND,
        ),
        Panel(
            "Failovers, by reason",
            "Calls of a candidate because the one before it failed, in an hour.",
            [
                Query(
                    total(
                        increase("spawnmesh_model_router_failovers_total", _PROVIDER),
                        "spawnmesh_model_router_provider",
                        "spawnmesh_model_router_next_provider",
                        "spawnmesh_failover_reason",
                    ),
                    "{{spawnmesh_model_router_provider}} to {{spawnmesh_model_router_next_provider}}:"
                    " {{spawnmesh_failover_reason}}",
                )
            ],
        ),
        Panel(
            "Cooldowns that began",
            "Models, credentials and providers that are left out for a while, in an hour: for all tenants,"
            " or for one whose calls failed.",
            [
                Query(
                    total(
                        increase("spawnmesh_model_router_cooldowns_total", _PROVIDER),
                        "spawnmesh_model_router_provider",
                        "spawnmesh_model_router_cooldown_scope",
                        "spawnmesh_model_router_cooldown_audience",
                        "spawnmesh_failover_reason",
                    ),
                    "{{spawnmesh_model_router_provider}} {{spawnmesh_model_router_cooldown_scope}}"
                    " for {{spawnmesh_model_router_cooldown_audience}}: {{spawnmesh_failover_reason}}",
                )
            ],
        ),
    ],
)

_USE = Row(
    "What do models use, and what does it cost?",
    [
        Panel(
            "Tokens, by model and type",
            "Charged tokens in a second. The input includes the tokens that come from caches.",
            [
                Query(
                    total(rate(_TOKENS, _MODEL), "gen_ai_request_model", "gen_ai_token_type"),
                    "{{gen_ai_request_model}} {{gen_ai_token_type}}",
                )
            ],
        ),
        Panel(
            "Cost in an hour, by model",
            "In the currency of the prices in the configuration of the models.",
            [
                Query(
                    f"{_of_model(increase(_COST, _MODEL))} / 1e6",
                    "{{gen_ai_request_model}}",
                )
            ],
            shape=Shape.STACKED,
        ),
        Panel(
            "Share of the input from caches",
            "It falls if prompts change at their beginning. Cached input costs less.",
            [Query(share(_of_model(_CACHED), _of_model(_INPUT)), _NAME)],
            Unit.SHARE,
        ),
        Panel(
            "Cost in the shown time",
            "Of all chosen models together.",
            [Query(f"{total(increase(_COST, _MODEL, window='$__range'))} / 1e6", "cost")],
            shape=Shape.NUMBER,
            width=12,
        ),
        Panel(
            "Tokens in the shown time",
            "Input and output of all chosen models together.",
            [
                Query(
                    total(increase(_TOKENS, _MODEL, 'gen_ai_token_type=~"input|output"', window="$__range")),
                    "tokens",
                )
            ],
            shape=Shape.NUMBER,
            width=12,
        ),
    ],
)

BOARD = Board(
    "spawnmesh-models",
    "Spawnmesh: models and cost",
    "Whether models answer, what happens when they do not, and what they use.",
    [_ANSWERS, _FAILOVERS, _USE],
    [
        Variable(
            "provider", "Provider", "spawnmesh_model_router_attempts_total", "spawnmesh_model_router_provider"
        ),
        Variable("model", "Model", f"{_CALLS}_count", "gen_ai_request_model"),
    ],
)
