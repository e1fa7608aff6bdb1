"""From the spawn of a session to the end of its run."""

from deploy.dashboards.parts import (
    OLDEST,
    Board,
    Panel,
    Query,
    Row,
    Shape,
    Unit,
    quantile,
    quantiles,
    rate,
    selector,
    total,
)

_CALLS = "rpc_server_call_duration_seconds"
_SPAWN = 'rpc_method="spawnmesh.session.v1.SessionService/SpawnSession"'
_FINALIZE = 'rpc_method="spawnmesh.session.v1.RunService/FinalizeRun"'
_PLUGINS = "spawnmesh_hook_delivery_duration_seconds"

_SPAWNS = Row(
    "Are spawns accepted, and how fast?",
    [
        Panel(
            "Spawns",
            "Calls of SpawnSession by status. OK is a session that is durable and has a queued run.",
            [
                Query(
                    total(rate(f"{_CALLS}_count", _SPAWN), "rpc_response_status_code"),
                    "{{rpc_response_status_code}}",
                )
            ],
            Unit.PER_SECOND,
            Shape.STACKED,
        ),
        Panel(
            "Refused spawns, by reason",
            "Limits and mistakes of tenants are among them. Runbook: calls-fail.md.",
            [Query(total(rate(f"{_CALLS}_count", _SPAWN), "error_type"), "{{error_type}}")],
            Unit.PER_SECOND,
        ),
        Panel(
            "Duration of SpawnSession",
            "It includes gates of plugins and staged files. A dot is a call with its trace.",
            quantiles(_CALLS, _SPAWN),
            Unit.SECONDS,
        ),
    ],
)

_QUEUE = Row(
    "Do runs wait for runners?",
    [
        Panel(
            "Wait for the first claim",
            "The time from the spawn to a runner of the mesh. Runbook: runs-wait.md.",
            quantiles("spawnmesh_session_queue_wait_seconds", 'spawnmesh_session_runtime="subagent"'),
            Unit.SECONDS,
            width=6,
        ),
        Panel(
            "Claims",
            "First claims; takeovers from runners that were lost; runs that were released, such as after an"
            " approval. Runbook for takeovers: runners-are-lost.md.",
            [
                Query(
                    total(rate("spawnmesh_session_claims_total"), "spawnmesh_session_claim"),
                    "{{spawnmesh_session_claim}}",
                )
            ],
            Unit.PER_SECOND,
            Shape.STACKED,
            width=6,
        ),
        Panel(
            "Free slots",
            "Runs that each runner could take now.",
            [
                Query(
                    selector("spawnmesh_runner_slots", 'spawnmesh_runner_slot_state="free"'),
                    "{{pod}}",
                )
            ],
            width=6,
        ),
        Panel(
            "Oldest waiting run",
            "It grows while nothing is claimed. `external` waits for programs of tenants.",
            [Query(OLDEST, "{{spawnmesh_session_runtime}}")],
            Unit.SECONDS,
            width=6,
        ),
    ],
)

_PEOPLE = Row(
    "Who waits for a person, and who watches?",
    [
        Panel(
            "Approvals and budgets that wait",
            "Runs that wait for a decision of a person, or for a larger budget.",
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
            width=6,
        ),
        Panel(
            "Oldest approval that waits",
            "It grows until people decide, or the approval expires as its agent says.",
            [Query(f"max({selector('spawnmesh_session_approvals_oldest_age_seconds')})", "oldest")],
            Unit.SECONDS,
            width=6,
        ),
        Panel(
            "Decisions",
            "Requested and decided approvals, in a second.",
            [
                Query(
                    total(
                        rate(
                            f"{_CALLS}_count",
                            'rpc_method=~".*/(RequestApproval|DecideApproval)"',
                            'rpc_response_status_code="OK"',
                        ),
                        "rpc_method",
                    ),
                    "{{rpc_method}}",
                )
            ],
            Unit.PER_SECOND,
            width=6,
        ),
        Panel(
            "Watchers of sessions and transcripts",
            "Open streams of WatchSession, and of transcripts behind them.",
            [
                Query(
                    total(
                        selector("spawnmesh_watches", 'rpc_method=~".*/(WatchSession|WatchTranscript)"'),
                        "rpc_method",
                    ),
                    "{{rpc_method}}",
                )
            ],
            width=6,
        ),
    ],
)

_ENDS = Row(
    "How do runs end?",
    [
        Panel(
            "Ended runs, by state",
            "Runs that reached a terminal state, in a second.",
            [
                Query(
                    total(rate("spawnmesh_session_runs_ended_total"), "spawnmesh_session_run_state"),
                    "{{spawnmesh_session_run_state}}",
                )
            ],
            Unit.PER_SECOND,
            Shape.STACKED,
            width=6,
        ),
        Panel(
            "Ended without success, by reason",
            "Runbook: runs-fail.md.",
            [
                Query(
                    total(rate("spawnmesh_session_runs_ended_total", 'error_type!=""'), "error_type"),
                    "{{error_type}}",
                )
            ],
            Unit.PER_SECOND,
            width=6,
        ),
        Panel(
            "Delays, by what was unavailable",
            "Runs that went back to the queue because something they needed did not answer.",
            [
                Query(
                    total(rate("spawnmesh_session_runs_delayed_total"), "error_type"),
                    "{{error_type}}",
                )
            ],
            Unit.PER_SECOND,
            width=6,
        ),
        Panel(
            "Duration of FinalizeRun",
            "It includes the plugins that look at the answer. A dot is a call with its trace.",
            quantiles(_CALLS, _FINALIZE),
            Unit.SECONDS,
            width=6,
        ),
    ],
)

_HOOKS = Row(
    "Do plugins answer, and what do they decide?",
    [
        Panel(
            "Calls of plugins, by decision",
            "`failed` and `skipped` are plugins that do not answer. Runbook: plugins-fail.md.",
            [
                Query(
                    total(rate(f"{_PLUGINS}_count"), "spawnmesh_hook_kind", "spawnmesh_hook_decision"),
                    "{{spawnmesh_hook_kind}} {{spawnmesh_hook_decision}}",
                )
            ],
            Unit.PER_SECOND,
            width=6,
        ),
        Panel(
            "Duration of calls of plugins, p95",
            "By hook. A gate delays the run that waits for it.",
            [
                Query(
                    quantile(0.95, _PLUGINS, by=["spawnmesh_hook_kind"]),
                    "{{spawnmesh_hook_kind}}",
                    exemplars=True,
                )
            ],
            Unit.SECONDS,
            width=6,
        ),
        Panel(
            "Drafts that plugins sent back",
            "Revisions cost a turn of the model each.",
            [Query(total(rate("spawnmesh_session_revisions_total")), "revisions")],
            Unit.PER_SECOND,
            width=6,
        ),
        Panel(
            "Requests to webhooks",
            "By result. Refused ones got a status, the others no answer.",
            [
                Query(
                    total(rate("spawnmesh_hook_webhook_duration_seconds_count"), "spawnmesh_hook_result"),
                    "{{spawnmesh_hook_result}}",
                )
            ],
            Unit.PER_SECOND,
            width=6,
        ),
    ],
)

BOARD = Board(
    "spawnmesh-runs",
    "Spawnmesh: spawns and runs",
    "From the spawn of a session over the queue and the runner to the end of its run.",
    [_SPAWNS, _QUEUE, _PEOPLE, _ENDS, _HOOKS],
)
