"""The first page: is it well, and if not, where?"""

from deploy.dashboards.chart import tenants_reasons, waiting_methods
from deploy.dashboards.parts import (
    OLDEST,
    Board,
    Limits,
    Panel,
    Query,
    Row,
    Shape,
    Unit,
    increase,
    quantile,
    rate,
    selector,
    top,
    total,
)

_CALLS = "rpc_server_call_duration_seconds"
_SPAWN = 'rpc_method="spawnmesh.session.v1.SessionService/SpawnSession"'
_UNSERVED = 'rpc_response_status_code=~"INTERNAL|UNKNOWN|UNAVAILABLE|DATA_LOSS|DEADLINE_EXCEEDED"'
_OURS = f'error_type!~"{tenants_reasons()}"'
_TARGETS = selector("up", 'job="metrics"')
_SERVED_AT_ONCE = f'rpc_method!~"{waiting_methods()}"'
_DOWN = total(f"1 - {selector('spawnmesh_dependency_up')}", "component", "dependency")
_ENDED = "spawnmesh_session_runs_ended_total"


def _failed(series: str, failed: str, *matchers: str, window: str) -> str:
    """Return the share that failed in the window."""
    bad = total(increase(series, *matchers, failed, window=window))
    return f"({bad} or vector(0)) / {total(increase(series, *matchers, window=window))}"


def _failed_shares(series: str, failed: str, *matchers: str) -> tuple[Query, ...]:
    windows = ("1h", "6h")
    return tuple(Query(_failed(series, failed, *matchers, window=one), f"in {one}") for one in windows)


_OBJECTIVES = Row(
    "Do clients and runs get what they ask for?",
    [
        Panel(
            "Spawns served",
            "The share of the calls of SpawnSession in the shown time that did not fail for a reason of the"
            " mesh. It is the first service level objective; its alerts are SpawnmeshSpawnsMissObjective"
            " and …Slowly, their page objectives.md.",
            [Query("1 - " + _failed(f"{_CALLS}_count", _UNSERVED, _SPAWN, window="$__range"), "served")],
            Unit.SHARE,
            Shape.NUMBER,
            width=6,
            limits=Limits(0.999, 0.99),
        ),
        Panel(
            "Runs not failed by the mesh",
            "The share of the runs that ended in the shown time and did not fail for a reason of the mesh."
            " What a tenant caused by its own settings is no failure here. It is the second objective.",
            [Query("1 - " + _failed(_ENDED, _OURS, window="$__range"), "not failed")],
            Unit.SHARE,
            Shape.NUMBER,
            width=6,
            limits=Limits(0.99, 0.95),
        ),
        Panel(
            "Processes that do not answer",
            "Targets of Prometheus that are down. Runbook: pods-not-ready.md.",
            [Query(f"count by (component) ({_TARGETS} == 0) or on () vector(0)", "{{component}}")],
            Unit.COUNT,
            Shape.NUMBER,
            width=6,
            limits=Limits(1, 2),
        ),
        Panel(
            "Dependencies that are down",
            "Processes that cannot use a service or a store, counted once for each that they miss."
            " Runbook: dependency-is-down.md.",
            [Query(f"{_DOWN} > 0 or on () vector(0)", "{{component}}: {{dependency}}")],
            Unit.COUNT,
            Shape.NUMBER,
            width=6,
            limits=Limits(1, 3),
        ),
        Panel(
            "Spawns that failed",
            "The share that the objective allows is used up in days where the line of six hours stays high."
            " The board on spawns and runs has the reasons.",
            _failed_shares(f"{_CALLS}_count", _UNSERVED, _SPAWN),
            Unit.SHARE,
        ),
        Panel(
            "Runs that the mesh failed",
            "As for spawns. The board on spawns and runs has the reasons.",
            _failed_shares(_ENDED, _OURS),
            Unit.SHARE,
        ),
        Panel(
            "Calls that end without an answer",
            "By reason, from all services. A reason that rises alone often names the cause."
            " Runbook: calls-fail.md.",
            [
                Query(
                    total(rate(f"{_CALLS}_count", 'error_type!=""'), "component", "error_type"),
                    "{{component}} {{error_type}}",
                )
            ],
            Unit.PER_SECOND,
        ),
    ],
)

_WAITING = Row(
    "Is work waiting, and for what?",
    [
        Panel(
            "Live runs",
            "Runs by what they do: a runner holds them, or they wait for a runner, for a person, or for"
            " their budget. Runbook: runs-wait.md.",
            [
                Query(
                    f"max by (spawnmesh_session_run_state) ({selector('spawnmesh_session_runs')})",
                    "{{spawnmesh_session_run_state}}",
                )
            ],
            shape=Shape.STACKED,
        ),
        Panel(
            "Oldest run that waits for a runner",
            "`subagent` grows while runs wait and none is claimed: runners are full, gone, or refuse work."
            " `external` waits for programs of tenants.",
            [Query(OLDEST, "{{spawnmesh_session_runtime}}")],
            Unit.SECONDS,
        ),
        Panel(
            "Slots of runners",
            "Runs that runners have and could have. With none free, more runners are needed.",
            [
                Query(
                    total(selector("spawnmesh_runner_slots"), "spawnmesh_runner_slot_state"),
                    "{{spawnmesh_runner_slot_state}}",
                )
            ],
            shape=Shape.STACKED,
        ),
    ],
)

_TRAFFIC = Row(
    "How much is asked of it, and how fast is it?",
    [
        Panel(
            "Calls",
            "Calls of each service in a second.",
            [Query(total(rate(f"{_CALLS}_count"), "component"), "{{component}}")],
            Unit.PER_SECOND,
            Shape.STACKED,
        ),
        Panel(
            "Slowest RPCs",
            "The 95th percentile of the ten slowest RPCs. Those that wait on purpose are left out."
            " A dot is a call with its trace.",
            [
                Query(
                    top(10, quantile(0.95, _CALLS, _SERVED_AT_ONCE, by=["rpc_method"])),
                    "{{rpc_method}}",
                    exemplars=True,
                )
            ],
            Unit.SECONDS,
        ),
        Panel(
            "Open watches",
            "Calls that wait for something to happen: watchers of sessions, replicas that follow each other,"
            " and runners that wait for runs.",
            [Query(total(selector("spawnmesh_watches"), "rpc_method"), "{{rpc_method}}")],
            shape=Shape.STACKED,
        ),
    ],
)

_AHEAD = Row(
    "What will break next?",
    [
        Panel(
            "Certificates expire in",
            "The time that is left of the certificates that the services present. Empty without TLS."
            " Runbook: certificates.md.",
            [
                Query(
                    f"min by (component) ({selector('spawnmesh_tls_certificate_expires_in_seconds')})",
                    "{{component}}",
                )
            ],
            Unit.SECONDS,
            width=6,
        ),
        Panel(
            "Age of the known revocations",
            "A service that has not heard from session for a minute accepts tokens that were revoked since.",
            [Query(f"max by (component) ({selector('spawnmesh_revocations_age_seconds')})", "{{component}}")],
            Unit.SECONDS,
            width=6,
        ),
        Panel(
            "Free disk of runners",
            "Free bytes beyond those that a runner needs to claim a run. At zero it claims none.",
            [
                Query(
                    f"{selector('spawnmesh_runner_disk_free_bytes')}"
                    f" - {selector('spawnmesh_runner_disk_min_free_bytes')}",
                    "{{pod}}",
                )
            ],
            Unit.BYTES,
            width=6,
        ),
        Panel(
            "Oldest background job",
            "How long the oldest job of each kind has been due. Runbook: jobs-are-behind.md.",
            [
                Query(
                    f"max by (spawnmesh_job_kind) ({selector('spawnmesh_jobs_oldest_age_seconds')})",
                    "{{spawnmesh_job_kind}}",
                )
            ],
            Unit.SECONDS,
            width=6,
        ),
    ],
)

BOARD = Board(
    "spawnmesh-overview",
    "Spawnmesh: overview",
    "Whether the mesh does its work, where work waits, and which other board has the cause.",
    [_OBJECTIVES, _WAITING, _TRAFFIC, _AHEAD],
)
