"""The kinds of background jobs. Statements of the store name some of them too."""

WORKER = "session-worker"
"""The process that does the jobs, as its heartbeats and its audit events name it."""

UNDO_SPAWN = "undo_spawn"
"""Undoes a spawn that did not end. Those in progress have places in the queue of runs."""
CLEAN_UP_SPAWN = "clean_up_spawn"
"""Removes what a failed spawn made."""
DELETE_SESSION = "delete_session"
DELETE_FAMILY = "delete_family"
"""Deletes what a call left of a large family. The key is the session that the call named."""
PUSH_SETTINGS = "push_settings"
EXPIRE_MODEL_CALL = "expire_model_call"
"""Counts a model call that nothing reported, with the most that it may have used."""
WAKE_BUDGET = "wake_budget"
"""Queues the runs that wait for a budget which may have room."""

FIRE_SCHEDULE = "fire_schedule"
"""Spawns the sessions of the due times of a schedule."""

RELEASE_ATTACHMENTS = "release_attachments"
RELEASE_TRANSCRIPT = "release_transcript"
PUBLISH_RUN_END = "publish_run_end"
PUBLISH_SPAWN_FAILURE = "publish_spawn_failure"
PUBLISH_SESSION_START = "publish_session_start"
PUBLISH_SESSION_END = "publish_session_end"
PUBLISH_SESSION_EVENT = "publish_session_event"
"""Publishes a change of a session: of an approval, a budget or files. The key names the event."""

FOLLOW_UPS = (
    RELEASE_ATTACHMENTS,
    RELEASE_TRANSCRIPT,
    PUBLISH_RUN_END,
    PUBLISH_SPAWN_FAILURE,
    PUBLISH_SESSION_START,
    PUBLISH_SESSION_END,
    PUBLISH_SESSION_EVENT,
)
"""The kinds of jobs that follow a start, an end or another change of a session or a run."""
