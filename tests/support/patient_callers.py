"""Callers for tests that share two processors with three other workers."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from spawnmesh_calls.silence_probe import SilenceProbe

_SLOWNESS = 10.0


@contextmanager
def patient_callers() -> Iterator[None]:
    """In the block, calls of this process are refused later if no replica answers.

    The processes of a mesh are not patient: they have the usual times.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SilenceProbe, "slowness", _SLOWNESS)
        yield
