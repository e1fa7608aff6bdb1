"""Real parts for the tests: one PostgreSQL, one S3 and one set of keys for each run, started when a test first asks for them."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from spawnmesh_devstack.keys import make_keys
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint, S3Server
from spawnmesh_devstack.service_roles import ServiceDsn, create_service_database
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_runtime.workarounds.wait_for import replace_wait_for

replace_wait_for()  # As every process of the mesh does: its parts are not tested on another loop.

settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")  # An example may take long on a busy machine.

SERVICES_WITH_DATABASE = ("session", "attachment_blob", "transcript", "model_router", "hook")


_LONG = (
    "chaos",
    "deploy",
    "mesh",
)  # Directories whose files take minutes; begun last, they would be waited for by one worker alone.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first; else the order stays as it is."""
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(here).parts[0] not in _LONG)


def _quiet(_line: str) -> None:
    """Progress is for people; tests have none watching."""


@pytest.fixture(scope="session")
def watchdog() -> Iterator[Watchdog]:
    """Ends what a test run started, should the run itself be killed."""
    with Watchdog() as dog:
        yield dog


@pytest.fixture(scope="session")
async def postgres(watchdog: Watchdog) -> AsyncIterator[Postgres]:
    """A real PostgreSQL. Not under pytest's own directory, which every new pytest run closes to other accounts than ours."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-postgres-") as folder:
        root = Path(folder)
        async with Postgres(root / "data", root / "postgres.log", watchdog, _quiet) as server:
            yield server


@pytest.fixture(scope="session")
async def databases(postgres: Postgres) -> dict[str, ServiceDsn]:
    """For each service, by its snake name, how its role and its owner enter the database; schemas are empty until migrated."""
    return await create_service_database(postgres.superuser_dsn, SERVICES_WITH_DATABASE)


@pytest.fixture(scope="session")
async def s3_server(tmp_path_factory: pytest.TempPathFactory, watchdog: Watchdog) -> AsyncIterator[S3Server]:
    """A real S3 server with STS."""
    root = tmp_path_factory.mktemp("s3")
    async with S3Server(root / "data", root / "s3.log", watchdog, _quiet) as server:
        yield server


@pytest.fixture(scope="session")
def s3(s3_server: S3Server) -> S3Endpoint:
    """How to reach the S3 server."""
    return s3_server.endpoint


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `<issuer>.pem` of every issuer and `jwks.json`."""
    directory = tmp_path_factory.mktemp("keys")
    make_keys(directory)
    return directory
