-- name: unremoved_sets
-- Takes no lock. Needs prefer_index_scans. The lateral query looks for files set by set, so that
-- the planner does not compare each set with all files of the tenant. Index: sets_pkey,
-- set_files_pkey.
select s.set_id
from sets s
cross join lateral (
    select from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = s.set_id limit 1
) file
where s.tenant_id = %(tenant_id)s and s.state = 'RELEASED'
    and s.state_time < now() - make_interval(secs => %(age_seconds)s) and s.set_id > %(after)s
order by s.set_id
limit %(limit)s;

-- name: outlived_sets
-- Takes no lock. Needs prefer_index_scans. Index: attachment_tenants_pkey, sets_pkey.
select s.set_id
from sets s
join attachment_tenants t on t.tenant_id = s.tenant_id
where s.tenant_id = %(tenant_id)s and s.state = 'ATTACHED' and t.retention_seconds > 0
    and s.state_time < now() - make_interval(secs => t.retention_seconds)
    and s.set_id > %(after)s
order by s.set_id
limit %(limit)s;

-- name: abandoned_sets
-- Takes no lock. Needs prefer_index_scans. Index: sets_staged_idx.
select s.set_id
from sets s
where s.tenant_id = %(tenant_id)s and s.state = 'STAGED' and starts_with(s.set_id, 'att_')
    and s.state_time < now() - make_interval(secs => %(age_seconds)s) and s.set_id > %(after)s
order by s.set_id
limit %(limit)s;

-- name: expired_uploads
-- Takes no lock. Needs prefer_index_scans. Index: uploads_pkey.
select u.row_id
from uploads u
where u.tenant_id = %(tenant_id)s
    and (u.expire_time < now() - make_interval(secs => %(age_seconds)s) or u.state = 'ABORTING')
    and u.row_id > %(after)s
order by u.row_id
limit %(limit)s;

-- name: unsettled_blobs
-- Takes no lock. Needs prefer_index_scans. Leaves the blobs of unremoved sets to the removal of the
-- set. Looks for references hash by hash. The ranges with `order by` leave the planner only the
-- named index. Index: blobs_unsettled_hash_idx, set_files_sha256_idx, uploads_sha256_idx.
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
where b.tenant_id = %(tenant_id)s and b.state <> 'STORED'
    and b.state_time < now() - make_interval(secs => %(age_seconds)s)
    and b.sha256 > %(after)s and file.is_one is null and upload.is_one is null
order by b.sha256
limit %(limit)s;

-- name: blobs_between
-- Takes no lock. Index: blobs_object_key_idx.
select b.sha256, b.object_key, b.size_bytes, b.state
from blobs b
where b.tenant_id = %(tenant_id)s and b.object_key > %(after)s
    and (%(until)s::text is null or b.object_key <= %(until)s)
order by b.object_key
limit %(limit)s;

-- name: upload_keys_between
-- Takes no lock. Finds the objects of uploads that may still be finished. Index:
-- uploads_object_key_idx.
select u.object_key
from uploads u
where u.tenant_id = %(tenant_id)s and u.state <> 'COMPLETE' and u.object_key > %(after)s
    and (%(until)s::text is null or u.object_key <= %(until)s);

-- name: stored_sets_of
-- Takes no lock. The range with `order by` leaves the planner only the named index. A set that has
-- the bytes more than once may be returned as often. Index: set_files_sha256_idx, sets_pkey.
select f.set_id
from set_files f
where f.tenant_id = %(tenant_id)s and f.sha256 between %(sha256)s and %(sha256)s
    and (
        select s.state from sets s where s.tenant_id = f.tenant_id and s.set_id = f.set_id
    ) in ('STAGED', 'ATTACHED')
order by f.sha256
limit 10;

-- name: open_multiparts
-- Takes no lock. Index: uploads_pkey.
select u.multipart_id
from uploads u
where u.tenant_id = %(tenant_id)s and u.state <> 'COMPLETE' and u.multipart_id <> '';

-- name: old_tombstones
-- Takes no lock. Needs prefer_index_scans. Looks for files set by set, so that the planner does not
-- read all files of the tenant. Index: sets_released_idx, set_files_pkey.
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

-- name: delete_tombstones
-- Waits for transactions that release one of them again. A RELEASED set gets no new files. Needs
-- prefer_index_scans. Deletes a range of the index. Index: sets_released_idx.
delete from sets
where tenant_id = %(tenant_id)s and state = 'RELEASED'
    and (state_time, set_id) > (%(after_time)s, %(after_id)s)
    and (state_time, set_id) <= (%(last_time)s, %(last_id)s)
    and set_id <> all(%(kept_ids)s::text[]);
