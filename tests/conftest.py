"""Real parts for the tests: one PostgreSQL, one S3 server and one set of keys in each worker.

Each of them starts when a test first needs it.
"""

import gc
import os
import pkgutil
import sys
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TextIO

import pytest
import spawnmesh_command.cli
from hypothesis import HealthCheck, settings
from spawnmesh_devstack.forks import ForkServer, open_fork_server
from spawnmesh_devstack.keys import make_keys
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint, S3Server
from spawnmesh_devstack.service_roles import ServiceDsn, create_service_database
from spawnmesh_devstack.watchdog import Watchdog
from spawnmesh_runtime.workarounds.wait_for import replace_wait_for
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling

from tests.support.citus.servers import citus_cluster
from tests.support.commands import Commands
from tests.support.hard_stop import hard_stop, time_limit
from tests.support.long_tests import mark_long
from tests.support.postgres.services import SERVICES_WITH_DATABASE

replace_wait_for()  # Every process of the mesh does so, and its parts are tested on the same loop.

# An example may take long on a busy machine.
settings.register_profile(
    "tests", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("tests"), max_examples=200)  # `make test-long`.
settings.load_profile("tests")


# The tests of each of these directories share what takes long to start: a mesh, a cluster.
_TOGETHER = (
    Path("tests") / "mesh",
    Path("tests") / "citus",
    Path("tests") / "security" / "running_mesh",
    Path("tests") / "contract" / "console",
)
# Except in these files, each of which starts meshes of its own. Another worker can run them, one
# after the other: three meshes at once are more than two cores can keep alive.
_APART = (Path("tests") / "mesh" / "test_demo.py", Path("tests") / "mesh" / "test_replicas.py")
# The directories with the longest tests, longest first. If they began last, one worker would run
# them while the other one has nothing left to do.
_LONG = ("mesh", "citus", "chaos", "deploy")
# Tests kill processes and not the machine.
_SETTINGS = {"fsync": "off", "full_page_writes": "off"}


class DirectoriesTogether(LoadFileScheduling):
    """Give each file to one worker, and nearly all files of some directories to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(super()._split_scope(nodeid))
        if file in _APART:
            return "meshes of their own"
        return str(next((folder for folder in _TOGETHER if file.is_relative_to(folder)), file))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Refine `--dist loadfile`."""
    return DirectoriesTogether(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collections, and exclude all that was collected from later ones.

    Each worker keeps some 600,000 objects of modules and tests until its end. Full collections would
    visit them again and again, and one alone takes half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the long tests, sort the longest directories to the front, and keep the order otherwise.

    Tests of the shared mesh are the last ones of their directory, so that the mesh does not idle
    beside those that start their own.
    """
    here = Path(__file__).parent
    mark_long(items, here.parent)

    def place(item: pytest.Item) -> tuple[int, bool]:
        directory = item.path.relative_to(here).parts[0]
        rank = _LONG.index(directory) if directory in _LONG else len(_LONG)
        return rank, "stack" in getattr(item, "fixturenames", ())

    items.sort(key=place)


_stderr = pytest.StashKey[TextIO]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the error output of the process, which is captured while tests run."""
    config.stash[_stderr] = os.fdopen(os.dup(sys.__stderr__.fileno()), "w")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close it."""
    config.stash[_stderr].close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process if the test is stuck."""
    with hard_stop(item.nodeid, time_limit(item), item.config.stash[_stderr]):
        return (yield)


def _quiet(_line: str) -> None:
    """Drop a line of progress."""


@pytest.fixture(scope="session")
def watchdog() -> Iterator[Watchdog]:
    """End the started processes if the test run itself is killed."""
    with Watchdog() as dog:
        yield dog


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Start the process whose forks are the processes of the mesh."""
    commands = [
        one.name for one in pkgutil.iter_modules(spawnmesh_command.cli.__path__, "spawnmesh_command.cli.")
    ]
    with open_fork_server(["spawnmesh_command.cli", *commands]) as server:
        yield server


@pytest.fixture(scope="session")
def commands(fork_server: ForkServer) -> Commands:
    """Run `spawnmesh`."""
    return Commands(fork_server)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs tests on a Citus cluster."""
    parser.addoption("--citus", action="store_true", help="the PostgreSQL of the tests is a Citus cluster")


@pytest.fixture(scope="session")
async def postgres(pytestconfig: pytest.Config, watchdog: Watchdog) -> AsyncIterator[Postgres]:
    """Start a real PostgreSQL, or with `--citus` the coordinator of a Citus cluster.

    It is not below pytest's directory, which each new run of pytest closes to other accounts.
    """
    with tempfile.TemporaryDirectory(prefix="spawnmesh-postgres-") as folder:
        root = Path(folder)
        if pytestconfig.getoption("citus"):
            async with citus_cluster(root, watchdog) as cluster:
                yield cluster.coordinator
            return
        async with Postgres(
            root / "data", root / "postgres.log", watchdog, _quiet, settings=_SETTINGS
        ) as server:
            yield server


@pytest.fixture(scope="session")
async def databases(postgres: Postgres) -> dict[str, ServiceDsn]:
    """Return the addresses of the role and of the owner of each service, by its snake name.

    The schemas are empty until they are migrated.
    """
    return await create_service_database(postgres.superuser_dsn, SERVICES_WITH_DATABASE)


@pytest.fixture(scope="session")
async def s3_server(tmp_path_factory: pytest.TempPathFactory, watchdog: Watchdog) -> AsyncIterator[S3Server]:
    """Start a real S3 server with STS."""
    root = tmp_path_factory.mktemp("s3")
    async with S3Server(root / "data", root / "s3.log", watchdog, _quiet) as server:
        yield server


@pytest.fixture(scope="session")
def s3(s3_server: S3Server) -> S3Endpoint:
    """Return the address and the keys of the S3 server."""
    return s3_server.endpoint


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with `<issuer>.pem` of every issuer and `jwks.json`."""
    directory = tmp_path_factory.mktemp("keys")
    make_keys(directory)
    return directory
