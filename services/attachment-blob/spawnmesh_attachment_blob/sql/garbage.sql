-- name: claim_collection
-- Locks the tenant. Gives nothing where another worker came first. Index: attachment_tenants_pkey.
update attachment_tenants
set collect_time = now()
where tenant_id = %(tenant_id)s and not purging
    and (collect_time is null or collect_time < now() - make_interval(secs => %(interval_seconds)s))
returning tenant_id;

-- name: unremoved_sets
-- No lock. A set that is STAGING was left so by a replica of the version before. Needs `keep_to_indexes`. Looks for files set by set, which keeps the planner
-- from comparing each with all files of the tenant. Index: set_files_pkey, sets_pkey.
select s.set_id
from sets s
cross join lateral (
    select from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = s.set_id limit 1
) file
where s.tenant_id = %(tenant_id)s and s.state in ('RELEASED', 'STAGING')
    and s.state_time < now() - make_interval(secs => %(age_seconds)s) and s.set_id > %(after)s
order by s.set_id
limit %(limit)s;

-- name: outlived_sets
-- No lock. Needs `keep_to_indexes`. Index: attachment_tenants_pkey, sets_pkey.
select s.set_id
from sets s
join attachment_tenants t on t.tenant_id = s.tenant_id
where s.tenant_id = %(tenant_id)s and s.state = 'ATTACHED' and t.retention_seconds > 0
    and s.state_time < now() - make_interval(secs => t.retention_seconds)
    and s.set_id > %(after)s
order by s.set_id
limit %(limit)s;

-- name: abandoned_sets
-- No lock. Needs `keep_to_indexes`. Index: sets_staged_idx.
select s.set_id
from sets s
where s.tenant_id = %(tenant_id)s and s.state = 'STAGED' and starts_with(s.set_id, 'att_')
    and s.state_time < now() - make_interval(secs => %(age_seconds)s) and s.set_id > %(after)s
order by s.set_id
limit %(limit)s;

-- name: expired_uploads
-- No lock. Needs `keep_to_indexes`. Index: uploads_pkey.
select u.upload_id as row_id
from uploads u
where u.tenant_id = %(tenant_id)s and (u.expire_time < now() - make_interval(secs => %(age_seconds)s) or u.state = 'ABORTING')
    and u.upload_id > %(after)s
order by u.upload_id
limit %(limit)s;

-- name: unsettled_blobs
-- No lock. Needs `keep_to_indexes`. Those of sets that are not removed yet are left to the removal of the set. Looks for references hash by hash, each
-- by a range in order, which leaves the planner no other index. Index: blobs_unsettled_hash_idx, set_files_sha256_idx, uploads_sha256_idx.
select b.sha256
from blobs b
left join lateral (
    select true as is_one from set_files f
    where f.tenant_id = %(tenant_id)s and f.sha256 between b.sha256 and b.sha256
    order by f.sha256
    limit 1
) file on true
left join lateral (
    select true as is_one from uploads u
    where u.tenant_id = %(tenant_id)s and u.sha256 between b.sha256 and b.sha256 and u.state = 'COMPLETE'
    order by u.sha256
    limit 1
) upload on true
where b.tenant_id = %(tenant_id)s and b.state <> 'STORED' and b.state_time < now() - make_interval(secs => %(age_seconds)s)
    and b.sha256 > %(after)s and file.is_one is null and upload.is_one is null
order by b.sha256
limit %(limit)s;

-- name: blobs_between
-- No lock. Index: blobs_object_key_idx.
select b.sha256, b.object_key, b.size_bytes, b.state
from blobs b
where b.tenant_id = %(tenant_id)s and b.object_key > %(after)s and (%(until)s::text is null or b.object_key <= %(until)s)
order by b.object_key
limit %(limit)s;

-- name: upload_keys_between
-- No lock: the objects of uploads that may be finished yet. Index: uploads_object_key_idx.
select u.object_key
from uploads u
where u.tenant_id = %(tenant_id)s and u.state <> 'COMPLETE' and u.object_key > %(after)s and (%(until)s::text is null or u.object_key <= %(until)s);

-- name: claim_orphan
-- Waits for whoever stores the same bytes; they wait for us from then on. Gives nothing where the bytes have a row. Index: blobs_pkey.
insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
values (%(tenant_id)s, %(sha256)s, 0, 'DELETING', %(object_key)s)
on conflict (tenant_id, sha256) do nothing
returning sha256;

-- name: lock_blob_elsewhere
-- Locks the blob, where its bytes belong under another key: no other key is ever used again. Index: blobs_pkey.
select b.sha256
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 = %(sha256)s and b.object_key <> %(object_key)s
for update;

-- name: mark_lost
-- Locks the blob. One that was put under another key meanwhile is left alone. Needs `keep_to_indexes`. Found by a range in order, which leaves the planner no
-- other index. Index: blobs_pkey.
update blobs
set state = 'PENDING', state_time = now()
where object_key = %(object_key)s and state = 'STORED' and ctid = (
    select b.ctid from blobs b
    where b.tenant_id = %(tenant_id)s and b.sha256 between %(sha256)s and %(sha256)s
    order by b.sha256
    limit 1
);

-- name: forget_lost_upload
-- Locks the upload, and not the blob: who removes an upload locks it before its blob. Needs `keep_to_indexes`. One at a time, found as for mark_lost.
-- Index: uploads_sha256_idx, blobs_pkey.
delete from uploads
where state = 'COMPLETE' and ctid = (
    select u.ctid from uploads u
    where u.tenant_id = %(tenant_id)s and u.sha256 between %(sha256)s and %(sha256)s and u.state = 'COMPLETE'
        and (
            select b.state from blobs b
            where b.tenant_id = %(tenant_id)s and b.sha256 between %(sha256)s and %(sha256)s
            order by b.sha256
            limit 1
        ) = 'PENDING'
    order by u.sha256
    limit 1
);

-- name: mark_found
-- Locks the blob. One that nobody refers to is left to who removes it. Found as for mark_lost. Index: blobs_pkey; see also the function.
update blobs
set state = 'STORED', state_time = now()
where object_key = %(object_key)s and state = 'PENDING' and is_referenced(%(tenant_id)s, %(sha256)s, '') and ctid = (
    select b.ctid from blobs b
    where b.tenant_id = %(tenant_id)s and b.sha256 between %(sha256)s and %(sha256)s
    order by b.sha256
    limit 1
);

-- name: stored_sets_of
-- No lock. Found by a range in order, which leaves the planner no other index; a set that has the bytes more than once may come as often.
-- Index: set_files_sha256_idx, sets_pkey.
select f.set_id
from set_files f
where f.tenant_id = %(tenant_id)s and f.sha256 between %(sha256)s and %(sha256)s
    and (select s.state from sets s where s.tenant_id = f.tenant_id and s.set_id = f.set_id) in ('STAGED', 'ATTACHED')
order by f.sha256
limit 10;

-- name: open_multiparts
-- No lock. Index: uploads_pkey.
select u.multipart_id
from uploads u
where u.tenant_id = %(tenant_id)s and u.state <> 'COMPLETE' and u.multipart_id <> '';

-- name: wait_for_stagings
-- Waits for whoever stages a set of the tenant; who wants to begin to waits until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('store something of ' || %(tenant_id)s, 0));

-- name: mark_purging
-- Locks the tenant, unless it was created anew since it had this version. Index: attachment_tenants_pkey.
update attachment_tenants
set purging = true, purged_version = greatest(purged_version, %(settings_version)s)
where tenant_id = %(tenant_id)s and (%(settings_version)s = 0 or greatest(settings_version, purged_version) <= %(settings_version)s);

-- name: lock_purge
-- Locks the tenant. A row that is not to be purged says that the purge is over, or of a tenant that was created anew; no row is left by a purge.
-- Index: attachment_tenants_pkey.
select purging and (%(settings_version)s = 0 or greatest(settings_version, purged_version) <= %(settings_version)s) as is_to_purge
from attachment_tenants
where tenant_id = %(tenant_id)s
for update;

-- name: keep_to_indexes
-- From here on, statements of the transaction find the rows of a page, and delete up to its last one, in the order of an index, whatever the planner was last
-- told of how many there are.
set local enable_sort = off;
set local enable_seqscan = off;

-- name: old_tombstones
-- No lock. Needs `keep_to_indexes`. Looks for files set by set, which keeps the planner from reading all of the tenant's. Index: sets_released_idx,
-- set_files_pkey.
select s.set_id, s.state_time, f.set_id is not null as has_files
from (
    select r.set_id, r.state_time
    from sets r
    where r.tenant_id = %(tenant_id)s and r.state = 'RELEASED'
        and r.state_time < now() - make_interval(secs => %(age_seconds)s)
        and (r.state_time, r.set_id) > (%(after_time)s, %(after_id)s)
    order by r.state_time, r.set_id
    limit %(limit)s
) s
left join lateral (
    select g.set_id from set_files g where g.tenant_id = %(tenant_id)s and g.set_id = s.set_id limit 1
) f on true
order by s.state_time, s.set_id;

-- name: forget_tombstones
-- Waits for whoever releases one of them again. A set that is RELEASED gets no files any more. Needs `keep_to_indexes`: deletes within a range of the
-- index, whatever the planner was last told of how many there are. Index: sets_released_idx.
delete from sets
where tenant_id = %(tenant_id)s and state = 'RELEASED'
    and (state_time, set_id) > (%(after_time)s, %(after_id)s) and (state_time, set_id) <= (%(last_time)s, %(last_id)s)
    and set_id <> all(%(kept_ids)s::text[]);

-- name: purge_set_files
-- Waits for whoever stages or releases one of them. Needs `keep_to_indexes`. Index: set_files_pkey.
with page as materialized (
    select set_id, position from set_files
    where tenant_id = %(tenant_id)s
    order by set_id, position
    limit %(limit)s
)
delete from set_files
where tenant_id = %(tenant_id)s and (set_id, position) <= (select set_id, position from page order by set_id desc, position desc limit 1);

-- name: purge_sets
-- Waits for whoever stages or releases one of them. Needs `keep_to_indexes`. Index: sets_pkey.
with page as materialized (
    select set_id from sets
    where tenant_id = %(tenant_id)s
    order by set_id
    limit %(limit)s
)
delete from sets
where tenant_id = %(tenant_id)s and set_id <= (select max(set_id) from page);

-- name: purge_uploads
-- Waits for whoever writes to one of them; parts go with them. Needs `keep_to_indexes`. Index: uploads_pkey.
with page as materialized (
    select upload_id from uploads
    where tenant_id = %(tenant_id)s
    order by upload_id
    limit %(limit)s
)
delete from uploads
where tenant_id = %(tenant_id)s and upload_id <= (select max(upload_id) from page);

-- name: purge_blobs
-- Waits for whoever stores or deletes one of them. Needs `keep_to_indexes`. Index: blobs_pkey.
with page as materialized (
    select sha256 from blobs
    where tenant_id = %(tenant_id)s
    order by sha256
    limit %(limit)s
)
delete from blobs
where tenant_id = %(tenant_id)s and sha256 <= (select max(sha256) from page);

-- name: purge_tenant
-- Index: attachment_tenants_pkey.
delete from attachment_tenants
where tenant_id = %(tenant_id)s and purging;

-- name: has_rows
-- No lock. Index: the primary key of each table. Parts have no rows without their upload.
select
    exists (select from attachment_tenants t where t.tenant_id = %(tenant_id)s)
    or exists (select from sets s where s.tenant_id = %(tenant_id)s)
    or exists (select from set_files f where f.tenant_id = %(tenant_id)s)
    or exists (select from blobs b where b.tenant_id = %(tenant_id)s)
    or exists (select from uploads u where u.tenant_id = %(tenant_id)s) as has_rows;
