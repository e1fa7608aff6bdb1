-- name: acquire_writer
-- Runs as a transaction of its own. The function documents its lock and its index.
select * from acquire_writer(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(run_id)s,
    %(epoch)s);

-- name: release_writer
-- Runs as a transaction of its own. The function documents its lock and its index.
select * from release_writer(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(run_id)s,
    %(epoch)s);
