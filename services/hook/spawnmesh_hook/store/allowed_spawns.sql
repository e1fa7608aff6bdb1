-- name: insert_allowed_spawn
-- Locks no existing row. Does nothing for a repeat. Index: allowed_spawns_pkey.
insert into allowed_spawns (tenant_id, session_id)
values (%(tenant_id)s, %(session_id)s)
on conflict do nothing;

-- name: is_allowed
-- Takes no lock. Index: allowed_spawns_pkey.
select from allowed_spawns where tenant_id = %(tenant_id)s and session_id = %(session_id)s;

-- name: has_allow
-- Takes no lock. Indexes: allowed_spawns_pkey and deliveries_session_idx.
select
where
    exists (select from allowed_spawns where tenant_id = %(tenant_id)s and session_id = %(session_id)s)
    or exists (
        select from deliveries
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s
            and hook = %(hook)s and decision = 'allow'
    );
