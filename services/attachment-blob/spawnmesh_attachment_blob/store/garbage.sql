-- The first statements read a page of an index, without a further condition, and say of each row
-- whether it is found. Conditions on the rows of the page would make the planner expect fewer rows
-- than a page, and prefer to read and sort all rows of the tenant. For the same reason a limit is a
-- subquery: the planner then expects that a tenth of the rows is wanted.

-- name: unremoved_sets
-- Takes no lock. Index: sets_pkey, set_files_pkey.
select
    s.set_id as key,
    s.state = 'RELEASED' and s.state_time < now() - make_interval(secs => %(age_seconds)s) and (
        select true from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = s.set_id limit 1
    ) is not null as is_found
from (
    select p.set_id, p.state, p.state_time
    from sets p
    where p.tenant_id = %(tenant_id)s and p.set_id > %(after)s
    order by p.set_id
    limit (select %(limit)s::bigint)
) s
order by s.set_id;

-- name: outlived_sets
-- Takes no lock. Reads no set if the tenant keeps them. Index: attachment_tenants_pkey, sets_pkey.
select
    s.set_id as key,
    s.state = 'ATTACHED' and s.state_time < now() - (
        select make_interval(secs => t.retention_seconds)
        from attachment_tenants t
        where t.tenant_id = %(tenant_id)s
    ) as is_found
from (
    select p.set_id, p.state, p.state_time
    from sets p
    where p.tenant_id = %(tenant_id)s and p.set_id > %(after)s
        and (select t.retention_seconds > 0 from attachment_tenants t where t.tenant_id = %(tenant_id)s)
    order by p.set_id
    limit (select %(limit)s::bigint)
) s
order by s.set_id;

-- name: abandoned_sets
-- Takes no lock. Index: sets_staged_idx.
select s.set_id as key, s.state_time < now() - make_interval(secs => %(age_seconds)s) as is_found
from (
    select p.set_id, p.state_time
    from sets p
    where p.tenant_id = %(tenant_id)s and p.state = 'STAGED' and starts_with(p.set_id, 'att_')
        and p.set_id > %(after)s
    order by p.set_id
    limit (select %(limit)s::bigint)
) s
order by s.set_id;

-- name: expired_uploads
-- Takes no lock. Index: uploads_pkey.
select
    u.row_id as key,
    u.expire_time < now() - make_interval(secs => %(age_seconds)s) or u.state = 'ABORTING' as is_found
from (
    select p.row_id, p.expire_time, p.state
    from uploads p
    where p.tenant_id = %(tenant_id)s and p.row_id > %(after)s
    order by p.row_id
    limit (select %(limit)s::bigint)
) u
order by u.row_id;

-- name: unsettled_blobs
-- Takes no lock. Leaves the blobs of unremoved sets to the removal of the set. Index:
-- blobs_unsettled_hash_idx, set_files_sha256_idx, uploads_sha256_idx.
select
    b.sha256 as key,
    b.state_time < now() - make_interval(secs => %(age_seconds)s)
    and (
        select true from set_files f where f.tenant_id = %(tenant_id)s and f.sha256 = b.sha256 limit 1
    ) is null
    and (
        select true from uploads u
        where u.tenant_id = %(tenant_id)s and u.sha256 = b.sha256 and u.state = 'COMPLETE'
        limit 1
    ) is null as is_found
from (
    select p.sha256, p.state_time
    from blobs p
    where p.tenant_id = %(tenant_id)s and p.state <> 'STORED' and p.sha256 > %(after)s
    order by p.sha256
    limit (select %(limit)s::bigint)
) b
order by b.sha256;

-- name: blobs_between
-- Takes no lock. Index: blobs_object_key_idx.
select b.sha256, b.object_key, b.size_bytes, b.state
from blobs b
where b.tenant_id = %(tenant_id)s and b.object_key > %(after)s
    and (%(until)s::text is null or b.object_key <= %(until)s)
order by b.object_key
limit (select %(limit)s::bigint);

-- name: upload_keys_between
-- Takes no lock. Finds the objects of uploads that may still be finished. Index:
-- uploads_object_key_idx.
select u.object_key
from uploads u
where u.tenant_id = %(tenant_id)s and u.state <> 'COMPLETE' and u.object_key > %(after)s
    and (%(until)s::text is null or u.object_key <= %(until)s);

-- name: stored_sets_of
-- Takes no lock. A set that has the bytes more than once may be returned as often. A subquery of
-- one row is never joined: it looks at the sets with the hash only.
-- Index: set_files_sha256_idx, sets_pkey.
select f.set_id
from set_files f
where f.tenant_id = %(tenant_id)s and f.sha256 = %(sha256)s
    and (
        select s.state from sets s where s.tenant_id = %(tenant_id)s and s.set_id = f.set_id
    ) in ('STAGED', 'ATTACHED')
limit 10;

-- name: open_multiparts
-- Takes no lock. Index: uploads_pkey.
select u.multipart_id
from uploads u
where u.tenant_id = %(tenant_id)s and u.state <> 'COMPLETE' and u.multipart_id <> '';

-- name: old_tombstones
-- Takes no lock. A subquery of one row is never joined: it looks for files set by set.
-- Index: sets_release_time_idx, set_files_pkey.
select
    s.set_id, s.release_time as state_time,
    (
        select true from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = s.set_id limit 1
    ) is not null as has_files
from sets s
where s.tenant_id = %(tenant_id)s and s.release_time < now() - make_interval(secs => %(age_seconds)s)
    and (s.release_time, s.set_id) > (%(after_time)s, %(after_id)s)
order by s.release_time, s.set_id
limit (select %(limit)s::bigint);

-- name: delete_tombstones
-- Waits for transactions that release one of them again. A RELEASED set gets no new files. Deletes
-- a range of the index. Index: sets_release_time_idx.
delete from sets
where tenant_id = %(tenant_id)s and release_time <= %(last_time)s
    and (release_time, set_id) > (%(after_time)s, %(after_id)s)
    and (release_time, set_id) <= (%(last_time)s, %(last_id)s)
    and set_id <> all(%(kept_ids)s::text[]);
