-- name: stage_set
-- Locks the set, then the blobs in the order of their hashes; see the function. Waits for
-- transactions that stage or release the set, and for those that put or delete one of the blobs. A
-- purge of the tenant waits for it. Index: attachment_tenants_pkey, sets_pkey, blobs_pkey.
select s.outcome, s.unstored, s.create_time
from stage_set(%(tenant_id)s, %(set)s::jsonb) s;

-- name: get_set
-- Takes no lock. Index: sets_pkey, set_files_pkey.
select
    s.set_id, s.session_id, s.state, s.create_time,
    (
        select coalesce(
            jsonb_agg(jsonb_build_array(f.name, f.size_bytes, f.sha256, f.mime_type) order by f.position),
            '[]'
        )
        from set_files f
        where f.tenant_id = s.tenant_id and f.set_id = s.set_id
    ) as files
from sets s
where s.tenant_id = %(tenant_id)s and s.set_id = %(set_id)s;

-- name: list_sets
-- Takes no lock. Leaves out tombstones, which have no session, and sets of payloads, which have ids
-- of another kind. Index: sets_pkey or sets_session_idx, set_files_pkey.
select
    s.set_id, s.session_id, s.state, s.create_time,
    (
        select coalesce(
            jsonb_agg(jsonb_build_array(f.name, f.size_bytes, f.sha256, f.mime_type) order by f.position),
            '[]'
        )
        from set_files f
        where f.tenant_id = s.tenant_id and f.set_id = s.set_id
    ) as files
from sets s
where s.tenant_id = %(tenant_id)s and s.session_id <> '' and starts_with(s.set_id, 'att_')
    and (%(session_id)s = '' or s.session_id = %(session_id)s)
    and (%(before)s = '' or s.set_id < %(before)s)
order by s.set_id desc
limit %(limit)s;

-- name: lock_set
-- Locks the set: waits for a transaction that removes its files. Index: sets_pkey.
select s.set_id
from sets s
where s.tenant_id = %(tenant_id)s and s.set_id = %(set_id)s
for update;

-- name: attach_set
-- Locks the set. Index: sets_pkey.
update sets
set state = 'ATTACHED', state_time = now()
where tenant_id = %(tenant_id)s and set_id = %(set_id)s and state = 'STAGED';

-- name: release_set
-- Locks the set: waits for transactions that stage or remove it. An unknown set becomes a
-- tombstone. Does nothing for a tenant that is being purged, which may have no row left.
-- Index: attachment_tenants_pkey, sets_pkey.
insert into sets as s (tenant_id, set_id, session_id, state)
select t.tenant_id, %(set_id)s, '', 'RELEASED'
from attachment_tenants t
where t.tenant_id = %(tenant_id)s and not t.purging
on conflict (tenant_id, set_id) do update
set state = 'RELEASED', state_time = case s.state when 'RELEASED' then s.state_time else now() end;

-- name: has_files
-- Takes no lock. A separate statement after release_set, because that one does not see the files of
-- a set that was being staged while it waited. Index: set_files_pkey.
select exists (
    select from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s
) as has_files;

-- name: release_staged_set
-- Locks the set: waits for transactions that attach or release it, and then updates nothing.
-- Index: sets_pkey.
update sets
set state = 'RELEASED', state_time = now()
where tenant_id = %(tenant_id)s and set_id = %(set_id)s and state = 'STAGED'
    and state_time < now() - make_interval(secs => %(age_seconds)s)
returning set_id;

-- name: delete_files
-- The set is locked by lock_set. Index: set_files_pkey.
delete from set_files
where tenant_id = %(tenant_id)s and set_id = %(set_id)s;
