-- name: stage_set
-- Locks the set, then the blobs in the order of their hashes: waits for whoever stages or releases the set, puts or deletes one of the blobs, and takes
-- back one that is marked for deletion. A purge of the tenant waits for it. Index: attachment_tenants_pkey, sets_pkey, blobs_pkey.
select s.outcome, s.unstored, s.create_time
from stage_given_set(%(tenant_id)s, %(set)s::jsonb) s;

-- name: get_set
-- No lock. A set that is STAGING is one of a replica of the version before, which alone knows it. Index: sets_pkey, set_files_pkey.
select
    s.set_id, s.session_id, s.state, s.create_time,
    (
        select coalesce(jsonb_agg(jsonb_build_array(f.name, f.size_bytes, f.sha256, f.mime_type) order by f.position), '[]')
        from set_files f
        where f.tenant_id = s.tenant_id and f.set_id = s.set_id
    ) as files
from sets s
where s.tenant_id = %(tenant_id)s and s.set_id = %(set_id)s and s.state <> 'STAGING';

-- name: list_sets
-- No lock. Tombstones have no session; sets that keep payloads have ids of another kind. Index: sets_pkey or sets_session_idx, set_files_pkey.
select
    s.set_id, s.session_id, s.state, s.create_time,
    (
        select coalesce(jsonb_agg(jsonb_build_array(f.name, f.size_bytes, f.sha256, f.mime_type) order by f.position), '[]')
        from set_files f
        where f.tenant_id = s.tenant_id and f.set_id = s.set_id
    ) as files
from sets s
where s.tenant_id = %(tenant_id)s and s.state <> 'STAGING' and s.session_id <> '' and starts_with(s.set_id, 'att_')
    and (%(session_id)s = '' or s.session_id = %(session_id)s)
    and (%(before)s = '' or s.set_id < %(before)s)
order by s.set_id desc
limit %(limit)s;

-- name: get_object_key
-- No lock. Index: blobs_pkey.
select b.object_key
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 = %(sha256)s;

-- name: lock_set
-- Locks the set: waits for whoever removes its files. Index: sets_pkey.
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
-- Locks the set: waits for whoever stages or removes it; an unknown one becomes a tombstone. Does nothing for a tenant that is purged, of which no
-- row may be left. Index: attachment_tenants_pkey, sets_pkey.
insert into sets as s (tenant_id, set_id, session_id, state)
select t.tenant_id, %(set_id)s, '', 'RELEASED'
from attachment_tenants t
where t.tenant_id = %(tenant_id)s and not t.purging
on conflict (tenant_id, set_id) do update
set state = 'RELEASED', state_time = case s.state when 'RELEASED' then s.state_time else now() end;

-- name: release_staged
-- Locks the set: waits for whoever attaches or releases it, and then leaves it alone. Index: sets_pkey.
update sets
set state = 'RELEASED', state_time = now()
where tenant_id = %(tenant_id)s and set_id = %(set_id)s and state = 'STAGED'
    and state_time < now() - make_interval(secs => %(age_seconds)s)
returning set_id;

-- name: has_files
-- No lock. A statement of its own after release_set, which does not see the files of a set that was being written while it waited.
-- Index: set_files_pkey.
select exists (
    select from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s
) as has_files;

-- name: forget_files
-- The set is locked by lock_set. Index: set_files_pkey.
delete from set_files
where tenant_id = %(tenant_id)s and set_id = %(set_id)s;
