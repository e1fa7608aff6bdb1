-- name: stage_set
-- A separate statement after join_writers, so that it sees a purge that began while that waited.
-- Returns the tenant's limits; no row if the tenant is not prepared or is being purged. Writes the
-- set and its files if the limits are the given ones, the set id is new, and `needed_bytes` fit
-- into the tenant's quota: `create_time` is null otherwise. Sets that are being staged are not seen
-- here: `add_usage` looks again when it counts the bytes. Bytes that the tenant has stored are not
-- needed; they are only looked for if all of them would not fit. Then inserts the blobs that have
-- no row (`added`), in the order of their hashes. Waits for transactions that stage or release the
-- set, and for those that store the same bytes for the first time; later ones wait until this
-- transaction ends. Index: attachment_tenants_pkey, purged_tenants_pkey, sets_pkey, blobs_pkey.
with quota as (
    select
        t.free_bytes,
        case
            when %(new_bytes)s::bigint <= t.free_bytes then %(new_bytes)s::bigint
            else (
                select coalesce(sum(n.size_bytes), 0)::bigint
                from jsonb_to_recordset(%(blobs)s::jsonb) as n (sha256 text, size_bytes bigint)
                where (
                    select b.state from blobs b where b.tenant_id = %(tenant_id)s and b.sha256 = n.sha256
                ) is distinct from 'STORED'
            )
        end as needed_bytes
    from attachment_tenants t
    where t.tenant_id = %(tenant_id)s
),
written as (
    insert into sets (tenant_id, set_id, session_id, run_id, reader_session_ids, state)
    select
        t.tenant_id, %(set_id)s, %(session_id)s, %(run_id)s, %(reader_session_ids)s::text[], 'STAGED'
    from attachment_tenants t
    where t.tenant_id = %(tenant_id)s
        and not exists (select true from purged_tenants p where p.tenant_id = %(tenant_id)s)
        and t.enabled = %(enabled)s and t.max_file_count = %(max_file_count)s
        and t.max_file_bytes = %(max_file_bytes)s and t.max_total_bytes = %(max_total_bytes)s
        and (select q.needed_bytes <= q.free_bytes from quota q)
    on conflict (tenant_id, set_id) do nothing
    returning create_time
),
files as (
    insert into set_files (tenant_id, set_id, position, name, size_bytes, sha256, mime_type)
    select t.tenant_id, %(set_id)s, f.position, f.name, f.size_bytes, f.sha256, f.mime_type
    from attachment_tenants t
    cross join jsonb_to_recordset(%(files)s::jsonb)
        as f (position integer, name text, size_bytes bigint, sha256 text, mime_type text)
    where t.tenant_id = %(tenant_id)s and exists (select true from written)
),
added as (
    insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
    select t.tenant_id, b.sha256, b.size_bytes, 'STORED', b.object_key
    from attachment_tenants t
    cross join jsonb_to_recordset(%(blobs)s::jsonb) as b (sha256 text, size_bytes bigint, object_key text)
    where t.tenant_id = %(tenant_id)s and exists (select true from written)
    order by b.sha256
    on conflict (tenant_id, sha256) do nothing
    returning sha256
)
select
    t.enabled, t.max_file_count, t.max_file_bytes, t.max_total_bytes,
    t.stored_bytes, t.uploading_bytes, t.max_stored_bytes,
    (select q.needed_bytes from quota q) as needed_bytes,
    (select w.create_time from written w) as create_time,
    array(select a.sha256 from added a) as added
from attachment_tenants t
where t.tenant_id = %(tenant_id)s
    and not exists (select true from purged_tenants p where p.tenant_id = %(tenant_id)s);

-- name: share_blobs
-- Locks, in the order of their hashes, the blobs that are STORED, shared with other transactions
-- that stage the same bytes; none if there is no set. Waits for transactions that delete or restore
-- one of them. A separate statement after stage_set, so that it sees what was committed while that
-- waited. Every transaction that inserts blobs and locks others inserts first.
-- Index: sets_pkey, blobs_pkey.
select b.sha256
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 = any(%(hashes)s::text[]) and b.state = 'STORED'
    and exists (select true from sets s where s.tenant_id = %(tenant_id)s and s.set_id = %(set_id)s)
order by b.sha256
for share of b;

-- name: lock_blobs
-- Locks the blobs in the order of their hashes. Waits for transactions that store, delete or refer
-- to one of them. A separate statement after stage_set, as share_blobs is. Index: blobs_pkey.
select b.sha256, b.state
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 = any(%(hashes)s::text[])
order by b.sha256
for update of b;

-- name: restore_blobs
-- The blobs are locked by lock_blobs. The object of a blob that is DELETING or LOST may be gone, or
-- be deleted at any moment: it gets a new key. Index: blobs_pkey.
update blobs
set state = 'STORED', state_time = now(), object_key = %(keys)s::jsonb ->> sha256
where tenant_id = %(tenant_id)s and sha256 = any(%(hashes)s::text[]) and state <> 'STORED'
    -- Bytes of uploads and of other sets have no new key.
    and %(keys)s::jsonb ->> sha256 is not null
returning sha256;

-- name: get_set
-- Takes no lock. Index: sets_pkey, set_files_pkey.
select
    s.set_id, s.session_id, s.run_id, s.reader_session_ids, s.state, s.create_time,
    (
        select coalesce(
            jsonb_agg(jsonb_build_array(f.name, f.size_bytes, f.sha256, f.mime_type) order by f.position),
            '[]'
        )
        from set_files f
        where f.tenant_id = %(tenant_id)s and f.set_id = s.set_id
    ) as files
from sets s
where s.tenant_id = %(tenant_id)s and s.set_id = %(set_id)s;

-- name: list_sets
-- Takes no lock. Leaves out tombstones, which have no session, and sets of payloads, which have ids
-- of another kind: ids of sets sort before 'b' in every collation.
-- Index: sets_pkey, set_files_pkey.
select
    s.set_id, s.session_id, s.run_id, s.reader_session_ids, s.state, s.create_time,
    (
        select coalesce(
            jsonb_agg(jsonb_build_array(f.name, f.size_bytes, f.sha256, f.mime_type) order by f.position),
            '[]'
        )
        from set_files f
        where f.tenant_id = %(tenant_id)s and f.set_id = s.set_id
    ) as files
from sets s
where s.tenant_id = %(tenant_id)s and s.session_id <> '' and starts_with(s.set_id, 'att_')
    and s.set_id < coalesce(nullif(%(before)s, ''), 'b')
order by s.set_id desc
limit (select %(limit)s::bigint);

-- name: list_sets_of_session
-- Takes no lock. Leaves out tombstones, which have no session, and sets of payloads, which have ids
-- of another kind: ids of sets sort before 'b' in every collation.
-- Index: sets_session_idx, set_files_pkey.
select
    s.set_id, s.session_id, s.run_id, s.reader_session_ids, s.state, s.create_time,
    (
        select coalesce(
            jsonb_agg(jsonb_build_array(f.name, f.size_bytes, f.sha256, f.mime_type) order by f.position),
            '[]'
        )
        from set_files f
        where f.tenant_id = %(tenant_id)s and f.set_id = s.set_id
    ) as files
from sets s
where s.tenant_id = %(tenant_id)s and s.session_id = %(session_id)s and starts_with(s.set_id, 'att_')
    and s.set_id < coalesce(nullif(%(before)s, ''), 'b')
order by s.set_id desc
limit (select %(limit)s::bigint);

-- name: list_referenced_sets
-- Takes no lock. Finds the sets, each with those of its files that are named together with its id,
-- and whether their bytes are not stored. All is of one snapshot: the bytes of a set that is not
-- RELEASED are stored, unless they were lost. Reads all files of the sets.
-- Index: sets_pkey, set_files_pkey, blobs_pkey.
select
    s.set_id, s.session_id, s.run_id, s.reader_session_ids, s.state, s.create_time,
    (
        select coalesce(
            jsonb_agg(
                jsonb_build_array(f.name, f.size_bytes, f.sha256, f.mime_type, (
                    select b.state from blobs b where b.tenant_id = %(tenant_id)s and b.sha256 = f.sha256
                ) is distinct from 'STORED')
                order by f.position
            ),
            '[]'
        )
        from set_files f
        where f.tenant_id = %(tenant_id)s and f.set_id = s.set_id
            and f.name = any(array(
                select r.name
                from unnest(%(set_ids)s::text[], %(names)s::text[]) as r (set_id, name)
                where r.set_id = s.set_id
            ))
    ) as files
from sets s
where s.tenant_id = %(tenant_id)s and s.set_id = any(%(set_ids)s::text[]);

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
where t.tenant_id = %(tenant_id)s
    and not exists (select true from purged_tenants p where p.tenant_id = %(tenant_id)s)
on conflict (tenant_id, set_id) do update
set state = 'RELEASED',
    state_time = case when s.state = 'RELEASED' then s.state_time else excluded.state_time end;

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
