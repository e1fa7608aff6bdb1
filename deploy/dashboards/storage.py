"""The database, the transcripts, the files and the background work on them."""

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
    selector,
    total,
)

_COMPONENT = 'component=~"$component"'

_DATABASE = Row(
    "Does PostgreSQL keep up?",
    [
        Panel(
            "Wait for a connection, p95",
            "It grows before work is refused. Runbook: connections-exhausted.md.",
            [
                Query(
                    quantile(0.95, "db_client_connection_wait_time_seconds", _COMPONENT, by=["component"]),
                    "{{component}}",
                    exemplars=True,
                )
            ],
            Unit.SECONDS,
            width=6,
        ),
        Panel(
            "Used connections, of those that there may be",
            "At 100 % calls wait for each other.",
            [
                Query(
                    f"{total(selector('db_client_connection_count', _COMPONENT), 'component')}"
                    f" / {total(selector('db_client_connection_max', _COMPONENT), 'component')}",
                    "{{component}}",
                )
            ],
            Unit.SHARE,
            width=6,
        ),
        Panel(
            "Transactions, p95",
            "The time from begin to commit. A dot is a call with its trace.",
            [
                Query(
                    quantile(0.95, "db_client_operation_duration_seconds", _COMPONENT, by=["component"]),
                    "{{component}}",
                    exemplars=True,
                )
            ],
            Unit.SECONDS,
            width=6,
        ),
        Panel(
            "Work refused for want of a connection",
            "In an hour. Runbook: connections-exhausted.md.",
            [
                Query(
                    total(increase("db_client_connection_timeouts_total", _COMPONENT), "component")
                    + " or 0 * "
                    + total(selector("db_client_connection_max", _COMPONENT), "component"),
                    "{{component}}",
                )
            ],
            width=6,
        ),
    ],
)

_JOBS = Row(
    "Is the background work done?",
    [
        Panel(
            "Jobs that wait, or were given up",
            "Dead jobs wait for a person. Runbooks: jobs-are-behind.md and jobs-are-dead.md.",
            [
                Query(
                    "max by (spawnmesh_job_kind, spawnmesh_job_state) ("
                    + selector("spawnmesh_jobs", 'spawnmesh_job_state=~"waiting|dead"')
                    + ")",
                    "{{spawnmesh_job_kind}} {{spawnmesh_job_state}}",
                )
            ],
        ),
        Panel(
            "Attempts of jobs",
            "By kind and result. `failed` ones are tried again.",
            [
                Query(
                    total(
                        rate("spawnmesh_jobs_attempts_total"), "spawnmesh_job_kind", "spawnmesh_job_result"
                    ),
                    "{{spawnmesh_job_kind}} {{spawnmesh_job_result}}",
                )
            ],
            Unit.PER_SECOND,
        ),
        Panel(
            "Tenants whose retention is due",
            "Runbook: jobs-are-behind.md.",
            [Query(f"max({selector('spawnmesh_session_retention_overdue')})", "tenants")],
        ),
    ],
)

_TRANSCRIPTS = Row(
    "How large are transcripts, and where are they?",
    [
        Panel(
            "Bytes of transcripts",
            "As readers see them, and those that are in the database. The rest is in the blob store alone.",
            [
                Query(f"max({selector('spawnmesh_transcript_logical_size_bytes')})", "as readers see them"),
                Query(f"max({selector('spawnmesh_transcript_stored_size_bytes')})", "in the database"),
            ],
            Unit.BYTES,
            width=6,
        ),
        Panel(
            "Moved out of the database",
            "Bytes in a second, and entries that could not be moved.",
            [
                Query(total(rate("spawnmesh_transcript_externalized_size_bytes_total")), "moved"),
                Query(total(rate("spawnmesh_transcript_tier_failures_total")), "entries not moved"),
            ],
            Unit.BYTES_PER_SECOND,
            width=6,
        ),
        Panel(
            "Results that contexts have as references",
            "Bytes in a second that models did not have to read.",
            [Query(total(rate("spawnmesh_transcript_stubbed_size_bytes_total")), "left out")],
            Unit.BYTES_PER_SECOND,
            width=6,
        ),
        Panel(
            "Compactions and references that were looked into",
            "In an hour. Many looks say that references leave out too much.",
            [
                Query(
                    total(
                        increase("spawnmesh_transcript_compactions_total"),
                        "spawnmesh_transcript_compaction_outcome",
                    ),
                    "compaction: {{spawnmesh_transcript_compaction_outcome}}",
                ),
                Query(
                    total(
                        increase("spawnmesh_transcript_drill_downs_total"),
                        "spawnmesh_transcript_drill_down_part",
                    ),
                    "looked into: {{spawnmesh_transcript_drill_down_part}}",
                ),
            ],
            width=6,
        ),
    ],
)

_OBJECTS = Row(
    "Is everything that should be there still there?",
    [
        Panel(
            "Found by comparing rows with objects",
            "In an hour. Missing and damaged objects are losses. Runbook: objects-are-missing.md.",
            [
                Query(
                    total(increase("spawnmesh_garbage_items_total"), "spawnmesh_garbage_kind"),
                    "{{spawnmesh_garbage_kind}}",
                )
            ],
        ),
        Panel(
            "Verified transcripts",
            "In an hour. A mismatch is a changed transcript. Runbook: transcripts-are-not-intact.md.",
            [
                Query(
                    total(
                        increase("spawnmesh_transcript_verified_transcripts_total"),
                        "spawnmesh_transcript_verification_outcome",
                    ),
                    "{{spawnmesh_transcript_verification_outcome}}",
                )
            ],
        ),
        Panel(
            "Events of the audit log",
            "Stored and lost calls in a second. Runbook: audit-events-are-lost.md.",
            [
                Query(
                    total(rate("spawnmesh_audit_calls_total"), "spawnmesh_audit_result"),
                    "{{spawnmesh_audit_result}}",
                )
            ],
            Unit.PER_SECOND,
            Shape.STACKED,
        ),
    ],
)

BOARD = Board(
    "spawnmesh-storage",
    "Spawnmesh: storage and database",
    "PostgreSQL, the background work, transcripts, and the files in S3.",
    [_DATABASE, _JOBS, _TRANSCRIPTS, _OBJECTS],
    [Variable("component", "Component", "db_client_connection_max", "component")],
)
