-- name: intend_set
-- Does nothing where the set exists. Else adds it, and locks the blobs in the order of their hashes: waits for whoever is deleting one of
-- them, and takes back one that is marked for it. Gives nothing where the set exists. Index: sets_pkey, blobs_pkey.
with new_set as (
    insert into sets (tenant_id, set_id, session_id, state)
    select %(tenant_id)s, %(set_id)s, %(session_id)s, 'STAGING'
    from set_config('synchronous_commit', 'off', true) as commit_mode (setting)
    where commit_mode.setting = 'off'
        and exists (select from attachment_tenants t where t.tenant_id = %(tenant_id)s and not t.purging)
    on conflict (tenant_id, set_id) do nothing
    returning tenant_id, set_id
),
new_files as (
    insert into set_files (tenant_id, set_id, position, name, size_bytes, sha256, mime_type)
    select n.tenant_id, n.set_id, f.position, f.name, f.size_bytes, f.sha256, f.mime_type
    from new_set n,
        unnest(%(names)s::text[], %(sizes)s::bigint[], %(hashes)s::text[], %(mime_types)s::text[])
        with ordinality as f (name, size_bytes, sha256, mime_type, position)
)
insert into blobs as b (tenant_id, sha256, size_bytes, state, object_key)
select n.tenant_id, f.sha256, f.size_bytes, 'PENDING', 'sha256/' || left(f.sha256, 2) || '/' || f.sha256
from new_set n,
    (select distinct d.size_bytes, d.sha256 from unnest(%(sizes)s::bigint[], %(hashes)s::text[]) as d (size_bytes, sha256)) f
order by f.sha256
on conflict (tenant_id, sha256) do update
set state = case b.state when 'STORED' then 'STORED' else 'PENDING' end, state_time = now(),
    object_key = case b.state when 'STORED' then b.object_key else excluded.object_key end
returning b.sha256, b.state;

-- name: get_set
-- No lock. Index: sets_pkey, set_files_pkey.
select
    s.set_id, s.session_id, s.state, s.create_time,
    (
        select coalesce(jsonb_agg(jsonb_build_array(f.name, f.size_bytes, f.sha256, f.mime_type) order by f.position), '[]')
        from set_files f
        where f.tenant_id = s.tenant_id and f.set_id = s.set_id
    ) as files
from sets s
where s.tenant_id = %(tenant_id)s and s.set_id = %(set_id)s;

-- name: list_sets
-- No lock. Tombstones have no session. Index: sets_pkey or sets_session_idx, set_files_pkey.
select
    s.set_id, s.session_id, s.state, s.create_time,
    (
        select coalesce(jsonb_agg(jsonb_build_array(f.name, f.size_bytes, f.sha256, f.mime_type) order by f.position), '[]')
        from set_files f
        where f.tenant_id = s.tenant_id and f.set_id = s.set_id
    ) as files
from sets s
where s.tenant_id = %(tenant_id)s and s.state <> 'STAGING' and s.session_id <> ''
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
-- Locks the set: waits for whoever stages or removes it. Index: sets_pkey, set_files_pkey.
select
    s.set_id, s.session_id, s.state, s.create_time,
    (
        select coalesce(jsonb_agg(jsonb_build_array(f.name, f.size_bytes, f.sha256, f.mime_type) order by f.position), '[]')
        from set_files f
        where f.tenant_id = s.tenant_id and f.set_id = s.set_id
    ) as files
from sets s
where s.tenant_id = %(tenant_id)s and s.set_id = %(set_id)s
for update of s;

-- name: finish_staging
-- The set is locked by lock_set. Locks the blobs in the order of their hashes. Index: sets_pkey, blobs_pkey.
with locked as (
    select b.sha256
    from blobs b
    where b.tenant_id = %(tenant_id)s and b.sha256 = any(%(hashes)s::text[])
    order by b.sha256
    for update
),
stored as (
    update blobs b
    set state = 'STORED', state_time = now()
    from locked l
    where b.tenant_id = %(tenant_id)s and b.sha256 = l.sha256
)
update sets
set state = 'STAGED', state_time = now()
where tenant_id = %(tenant_id)s and set_id = %(set_id)s and state = 'STAGING';

-- name: attach_set
-- Locks the set. Index: sets_pkey.
update sets
set state = 'ATTACHED', state_time = now()
where tenant_id = %(tenant_id)s and set_id = %(set_id)s and state = 'STAGED';

-- name: release_set
-- Locks the set: waits for whoever stages or removes it; an unknown one becomes a tombstone. Index: sets_pkey.
insert into sets as s (tenant_id, set_id, session_id, state)
values (%(tenant_id)s, %(set_id)s, '', 'RELEASED')
on conflict (tenant_id, set_id) do update
set state = 'RELEASED', state_time = case s.state when 'RELEASED' then s.state_time else now() end;

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

-- name: forget_set
-- The set is locked by lock_set; its files go with it. Index: sets_pkey, set_files_pkey.
delete from sets
where tenant_id = %(tenant_id)s and set_id = %(set_id)s;
