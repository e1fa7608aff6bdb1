-- name: insert_upload
-- Inserts and returns nothing if the upload exists. Index: uploads_pkey.
insert into uploads
    (tenant_id, upload_id, session_id, name, size_bytes, sha256, mime_type, state, object_key, expire_time)
values
    (%(tenant_id)s, %(upload_id)s, %(session_id)s, %(name)s, %(size_bytes)s, %(sha256)s, %(mime_type)s,
     'OPEN', %(object_key)s, now() + make_interval(secs => %(ttl_seconds)s))
on conflict do nothing
returning row_id;

-- name: lock_upload_quota
-- Takes the advisory lock of the tenant's new uploads. Waits for transactions that begin an upload
-- of the tenant; later ones wait until this transaction ends.
select pg_advisory_xact_lock(hashtextextended('open an upload of ' || %(tenant_id)s, 0));

-- name: count_uploads
-- Takes no lock. A separate statement after lock_upload_quota, so that it sees what was committed
-- while that waited. Leaves out the upload itself, which may be among these. An upload that is
-- being removed still has its bytes. Identical bytes of finished uploads are stored once and count
-- once. Reads at most the tenant's quota. Index: uploads_object_key_idx, uploads_sha256_idx.
select
    opened.open_count, opened.open_bytes,
    finished.finished_count, finished.finished_bytes, finished.first_expire_time
from
    (
        select count(*) as open_count, coalesce(sum(u.size_bytes), 0)::bigint as open_bytes
        from uploads u
        where u.tenant_id = %(tenant_id)s and u.state <> 'COMPLETE' and u.row_id <> %(row_id)s
    ) opened,
    (
        select
            coalesce(sum(same.upload_count), 0)::bigint as finished_count,
            coalesce(sum(same.size_bytes), 0)::bigint as finished_bytes,
            min(same.first_expire_time) as first_expire_time
        from (
            select
                count(*) as upload_count, max(u.size_bytes) as size_bytes,
                min(u.expire_time) as first_expire_time
            from uploads u
            where u.tenant_id = %(tenant_id)s and u.state = 'COMPLETE' and u.row_id <> %(row_id)s
            group by u.sha256
        ) same
    ) finished;

-- name: get_upload
-- Takes no lock. Index: uploads_pkey, upload_parts_pkey.
select
    u.upload_id, u.session_id, u.name, u.size_bytes, u.sha256, u.mime_type, u.state, u.generation,
    u.object_key, u.multipart_id, u.create_time, u.expire_time,
    (
        select coalesce(sum(p.size_bytes), 0)::bigint
        from upload_parts p
        where p.tenant_id = %(tenant_id)s and p.row_id = u.row_id
    ) as part_bytes
from uploads u
where u.tenant_id = %(tenant_id)s and u.row_id = %(row_id)s;

-- name: lock_upload
-- Locks the upload: waits for transactions that record a part of it or remove it.
-- Index: uploads_pkey.
select u.row_id
from uploads u
where u.tenant_id = %(tenant_id)s and u.row_id = %(row_id)s
for update;

-- name: take_over_upload
-- The upload is locked by lock_upload. Index: uploads_pkey.
update uploads
set generation = generation + 1, expire_time = now() + make_interval(secs => %(ttl_seconds)s)
where tenant_id = %(tenant_id)s and row_id = %(row_id)s and state = 'OPEN'
returning generation;

-- name: list_parts
-- Takes no lock: parts change only under the lock of their upload. Index: upload_parts_pkey.
select p.part_number, p.size_bytes, p.etag
from upload_parts p
where p.tenant_id = %(tenant_id)s and p.row_id = %(row_id)s
order by p.part_number;

-- name: set_multipart
-- Locks the upload. Updates nothing for an older generation. Index: uploads_pkey.
update uploads
set multipart_id = %(multipart_id)s
where tenant_id = %(tenant_id)s and row_id = %(row_id)s and generation = %(generation)s and state = 'OPEN'
returning row_id;

-- name: add_part
-- Locks the upload. Inserts nothing for an older generation. Index: uploads_pkey,
-- upload_parts_pkey.
with held as (
    update uploads
    set expire_time = now() + make_interval(secs => %(ttl_seconds)s)
    where tenant_id = %(tenant_id)s and row_id = %(row_id)s and generation = %(generation)s
        and state = 'OPEN'
    returning tenant_id, row_id
)
insert into upload_parts (tenant_id, row_id, part_number, size_bytes, etag)
select h.tenant_id, h.row_id, %(part_number)s, %(size_bytes)s, %(etag)s from held h
returning part_number;

-- name: complete_upload
-- Locks the upload. Updates nothing for an older generation. Index: uploads_pkey.
update uploads
set state = 'COMPLETE', multipart_id = '', expire_time = now() + make_interval(secs => %(ttl_seconds)s)
where tenant_id = %(tenant_id)s and row_id = %(row_id)s and generation = %(generation)s and state = 'OPEN'
returning row_id;

-- name: delete_parts
-- The upload is locked by complete_upload. Index: upload_parts_pkey.
delete from upload_parts
where tenant_id = %(tenant_id)s and row_id = %(row_id)s;

-- name: extend_upload
-- The upload is locked by lock_upload. Updates nothing while more than half of its time is left.
-- Index: uploads_pkey.
update uploads
set expire_time = now() + make_interval(secs => %(ttl_seconds)s)
where tenant_id = %(tenant_id)s and row_id = %(row_id)s and state = 'COMPLETE'
    and expire_time < now() + make_interval(secs => %(ttl_seconds)s) / 2;

-- name: abort_upload
-- Locks the upload. Later writes of its stream are refused. Updates nothing for a COMPLETE upload
-- and for an older generation. Index: uploads_pkey.
update uploads
set state = 'ABORTING', generation = generation + 1
where tenant_id = %(tenant_id)s and row_id = %(row_id)s and generation = %(generation)s
    and state <> 'COMPLETE'
returning row_id, object_key, multipart_id;

-- name: abort_expired_upload
-- Locks the upload. Later writes of its stream are refused. Updates nothing for a COMPLETE upload
-- and for one that has not expired. Index: uploads_pkey.
update uploads
set state = 'ABORTING', generation = generation + 1
where tenant_id = %(tenant_id)s and row_id = %(row_id)s and state <> 'COMPLETE'
    and (expire_time < now() or state = 'ABORTING')
returning row_id, object_key, multipart_id;

-- name: delete_aborted_upload
-- Deletes its parts with it, and takes its bytes out of the tenant's usage. Locks the tenant last.
-- Index: uploads_pkey, upload_parts_pkey, attachment_tenants_pkey.
with deleted as (
    delete from uploads
    where tenant_id = %(tenant_id)s and row_id = %(row_id)s and state = 'ABORTING'
    returning size_bytes
)
update attachment_tenants
set uploading_bytes = uploading_bytes - (select d.size_bytes from deleted d)
where tenant_id = %(tenant_id)s and exists (select true from deleted);

-- name: delete_expired_upload
-- Locks the upload. Index: uploads_pkey.
delete from uploads
where tenant_id = %(tenant_id)s and row_id = %(row_id)s and state = 'COMPLETE' and expire_time < now()
returning sha256;

-- name: delete_lost_uploads
-- Locks the uploads, and not the blob: a removal of an upload locks the upload before its blob.
-- Index: uploads_sha256_idx, blobs_pkey.
delete from uploads
where tenant_id = %(tenant_id)s and sha256 = %(sha256)s and state = 'COMPLETE'
    and (
        select b.state from blobs b where b.tenant_id = %(tenant_id)s and b.sha256 = %(sha256)s
    ) = 'LOST';
