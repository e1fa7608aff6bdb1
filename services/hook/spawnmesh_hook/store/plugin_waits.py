"""Since when runs wait for plugins that give no answer."""

from datetime import timedelta

from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.statements import load_statements

from spawnmesh_hook.domain.plugins import Plugin

_SQL = load_statements(__name__)


async def measure_wait(connection: Connection, tenant_id: str, run_id: str, plugin: Plugin) -> timedelta:
    """Return how long the run has waited for this registration of the plugin.

    If it does not wait yet, its wait begins now.
    """
    parameters = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "plugin": plugin.name,
        "generation": plugin.generation,
    }
    row = await (await connection.execute(_SQL["measure_wait"], parameters)).fetchone()
    if row is None:
        raise RuntimeError("the upsert of a wait returned no row")
    waited: timedelta = row["waited"]
    return waited


async def end_wait(connection: Connection, tenant_id: str, run_id: str, plugin: Plugin) -> None:
    """End the run's wait for the plugin, if it waits."""
    parameters = {"tenant_id": tenant_id, "run_id": run_id, "plugin": plugin.name}
    await connection.execute(_SQL["end_wait"], parameters)
