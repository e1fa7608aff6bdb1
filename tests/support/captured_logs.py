"""Capture the log records of the code under test in this process."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog


@contextmanager
def captured_warnings() -> Iterator[list[MutableMapping[str, Any]]]:
    """Return the warnings and errors of the block, whatever level other tests have set."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    try:
        with structlog.testing.capture_logs() as captured:
            yield captured
    finally:
        structlog.configure(wrapper_class=before)
