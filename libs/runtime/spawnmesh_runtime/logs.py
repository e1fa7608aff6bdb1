"""JSON log events on standard output, with the trace id, tenant, session and run if known."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import orjson
import structlog

from spawnmesh_runtime.caller import caller_or_none
from spawnmesh_runtime.telemetry import current_trace_id

Event = MutableMapping[str, Any]


def write_json_logs(service: str, level: str) -> None:
    """Configure structlog for the process, and write the warnings of libraries in the
    same format.
    """

    def add_context(_: object, __: str, event: Event) -> Event:
        event.setdefault("service", service)
        trace_id = current_trace_id()
        if trace_id:
            event["trace_id"] = trace_id
        caller = caller_or_none()
        if caller is not None:
            for name, value in (
                ("tenant", caller.tenant_id),
                ("session", caller.session_id),
                ("run", caller.run_id),
            ):
                if value:
                    event.setdefault(name, value)
        return event

    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_context,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer(orjson.dumps)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.BytesLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = _LibraryHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    for earlier in [known for known in root.handlers if isinstance(known, _LibraryHandler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)


class _LibraryHandler(logging.StreamHandler[Any]):
    """The handler that this module adds to the root logger."""
