-- name: insert_allowed_spawn
-- Locks no existing row. Does nothing for a repeat. Index: allowed_spawns_pkey.
insert into allowed_spawns (tenant_id, session_id)
values (%(tenant_id)s, %(session_id)s)
on conflict do nothing;

-- name: is_allowed
-- Takes no lock. Index: allowed_spawns_pkey.
select from allowed_spawns where tenant_id = %(tenant_id)s and session_id = %(session_id)s;
