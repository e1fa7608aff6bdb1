"""The schedules of a tenant of the test's own."""

from typing import Any

import pytest

from tests.support.session.harness import Mesh
from tests.support.session.schedules import Clockwork


@pytest.fixture
def clockwork(mesh: Mesh, postgres: Any) -> Clockwork:
    return Clockwork(mesh, postgres)
