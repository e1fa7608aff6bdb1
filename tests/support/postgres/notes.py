"""A table of notes with row-level security, for tests of the pool and its transactions."""

from spawnmesh_postgres.database import Database

TABLE = """
create table if not exists notes (tenant_id text not null, note_id text not null, primary key (tenant_id, note_id));
alter table notes enable row level security;
alter table notes force row level security;
drop policy if exists tenant on notes;
create policy tenant on notes using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
truncate notes;
"""


async def notes(database: Database, tenant_id: str) -> list[str]:
    async with database.transaction(tenant_id) as connection:
        rows = await (await connection.execute("select tenant_id from notes")).fetchall()
    return [row["tenant_id"] for row in rows]


async def write(database: Database, scope: str, tenant_id: str) -> None:
    async with database.transaction(scope) as connection:
        await connection.execute("insert into notes values (%s, 'n')", (tenant_id,))
