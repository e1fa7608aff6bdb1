"""Capture the log records of the code under test in this process."""

from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import structlog


def captured_warnings() -> AbstractContextManager[list[MutableMapping[str, Any]]]:
    """Return the warnings and errors of the block, whatever level other tests have set."""
    return _captured("warning")


def captured_events() -> AbstractContextManager[list[MutableMapping[str, Any]]]:
    """Return the events of the block from `info` on, whatever level other tests have set."""
    return _captured("info")


@contextmanager
def _captured(level: str) -> Iterator[list[MutableMapping[str, Any]]]:
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    try:
        with structlog.testing.capture_logs() as captured:
            yield captured
    finally:
        structlog.configure(wrapper_class=before)
