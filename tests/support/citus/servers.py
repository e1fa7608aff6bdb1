"""A Citus cluster in the place of the single PostgreSQL server of a mesh."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psycopg
from spawnmesh_devstack.postgres import NewPostgres, Postgres
from spawnmesh_devstack.service_roles import DATABASE
from spawnmesh_devstack.watchdog import Watchdog

from tests.support.citus.cluster import (
    PORT,
    Cluster,
    create_database,
    host_of,
    install,
    programs_below,
    settings_of,
    why_missing,
)

NODES = (1, 2, 3)


def citus_postgres(node_count: int) -> NewPostgres:
    """Return a constructor of clusters with so many nodes: a coordinator, and workers beside it.

    A coordinator without workers stores the rows itself. Raises RuntimeError without the extension.
    """
    if reason := why_missing():
        raise RuntimeError(reason)
    return partial(CitusPostgres, worker_count=node_count - 1)


@asynccontextmanager
async def citus_cluster(root: Path, watchdog: Watchdog) -> AsyncIterator[Cluster]:
    """Start a coordinator and two workers below `root`, and stop all at the end."""
    log_file = root / "postgres.log"
    async with CitusPostgres(
        root / "coordinator", log_file, watchdog, lambda _line: None, worker_count=2
    ) as server:
        yield server.cluster


class CitusPostgres(Postgres):
    """The coordinator. Its workers start before it and stop after it."""

    def __init__(
        self,
        data_dir: Path,
        log_file: Path,
        watchdog: Watchdog,
        report: Callable[[str], None],
        *,
        worker_count: int,
    ) -> None:
        self._root = data_dir.parent / "citus"
        programs = programs_below(self._root)
        super().__init__(
            data_dir, log_file, watchdog, report, programs=programs, settings=settings_of(data_dir)
        )
        self._workers = tuple(
            Postgres(
                folder,
                log_file,
                watchdog,
                lambda _line: None,
                programs=programs,
                settings=settings_of(folder),
            )
            for folder in (self._root / f"worker-{number}" for number in range(1, worker_count + 1))
        )
        self._is_cluster = False

    @property
    def cluster(self) -> Cluster:
        """All servers."""
        return Cluster(self, self._workers)

    async def start(self) -> None:
        """Start the workers that do not run, and the coordinator; register them the first time."""
        if not self._root.exists():
            await asyncio.to_thread(install, self._root)
        await asyncio.gather(*(one.start() for one in self._workers if not one.is_running))
        await super().start()
        if not self._is_cluster:
            await asyncio.to_thread(self._make_cluster)
            self._is_cluster = True

    async def stop(self) -> None:
        """Stop all servers."""
        await super().stop()
        await asyncio.gather(*(one.stop() for one in self._workers))

    async def _leave(self) -> None:
        await super()._leave()
        for one in self._workers:
            await one.__aexit__(None, None, None)

    def _make_cluster(self) -> None:
        create_database(self.cluster, DATABASE)
        if not self._workers:
            with psycopg.connect(self.cluster.superuser_dsn, autocommit=True) as connection:
                connection.execute(
                    "select citus_set_node_property(%s, %s, 'shouldhaveshards', true)", (host_of(self), PORT)
                )
