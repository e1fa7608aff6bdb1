-- name: insert_upload
-- Does nothing where the upload exists. Where another owner's row has the id for its key, this row's key names the owner, too. A statement of its
-- own after lock_room, so that it sees what was begun while that waited. Found by a range in order, which leaves the planner no other index.
-- Index: uploads_pkey.
insert into uploads
    (tenant_id, upload_id, session_id, name, size_bytes, sha256, mime_type, state, object_key, expire_time)
select
    %(tenant_id)s, coalesce(taken.upload_id || '.' || %(session_id)s, %(upload_id)s), %(session_id)s, %(name)s, %(size_bytes)s, %(sha256)s,
    %(mime_type)s, 'OPEN', %(object_key)s, now() + make_interval(secs => %(ttl_seconds)s)
from (values (true)) one
left join lateral (
    select u.upload_id from uploads u
    where u.tenant_id = %(tenant_id)s and u.upload_id between %(upload_id)s and %(upload_id)s
    order by u.upload_id
    limit 1
) taken on true
on conflict do nothing;

-- name: lock_room
-- Waits for whoever opens an upload of the tenant; who wants to begin to waits until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('open an upload of ' || %(tenant_id)s, 0));

-- name: count_uploads
-- A statement of its own after lock_room, so that it sees what was committed while that waited; the upload itself may be among that, and is
-- left out. One that is being removed still has its bytes; of those that are finished, bytes that are the same are stored once. Costs what the
-- tenant has, which is what this keeps small. Indexes: uploads_object_key_idx, uploads_sha256_idx.
select opened.open_count, opened.open_bytes, finished.finished_count, finished.finished_bytes, finished.first_expire_time
from
    (
        select count(*) as open_count, coalesce(sum(u.size_bytes), 0)::bigint as open_bytes
        from uploads u
        where u.tenant_id = %(tenant_id)s and u.state <> 'COMPLETE'
            and (u.session_id <> %(session_id)s or u.given_id <> %(upload_id)s)
    ) opened,
    (
        select
            coalesce(sum(same.upload_count), 0)::bigint as finished_count, coalesce(sum(same.size_bytes), 0)::bigint as finished_bytes,
            min(same.first_expire_time) as first_expire_time
        from (
            select count(*) as upload_count, max(u.size_bytes) as size_bytes, min(u.expire_time) as first_expire_time
            from uploads u
            where u.tenant_id = %(tenant_id)s and u.state = 'COMPLETE'
                and (u.session_id <> %(session_id)s or u.given_id <> %(upload_id)s)
            group by u.sha256
        ) same
    ) finished;

-- name: get_upload
-- No lock. Found by a range in order, which leaves the planner no other index. Index: uploads_owner_idx, upload_parts_pkey.
select
    u.upload_id as row_id, u.given_id as upload_id, u.session_id, u.name, u.size_bytes, u.sha256, u.mime_type, u.state,
    u.generation, u.object_key, u.multipart_id, u.create_time, u.expire_time,
    (select coalesce(sum(p.size_bytes), 0)::bigint from upload_parts p where p.tenant_id = u.tenant_id and p.upload_id = u.upload_id) as part_bytes
from uploads u
where u.tenant_id = %(tenant_id)s and u.given_id between %(upload_id)s and %(upload_id)s and u.session_id = %(session_id)s
order by u.given_id
limit 1;

-- name: lock_upload
-- Locks the upload: waits for whoever records a part of it or removes it. Found as for get_upload. Index: uploads_owner_idx.
select u.upload_id as row_id
from uploads u
where u.tenant_id = %(tenant_id)s and u.given_id between %(upload_id)s and %(upload_id)s and u.session_id = %(session_id)s
order by u.given_id
limit 1
for update;

-- name: lock_stored_blob
-- Locks the blob, with others who refer to it: who wants to delete it waits, and then sees the reference that is about to be added. Where a session is named,
-- only bytes that its runs can read, in a set, or hand on, from an upload that they finished. Ranges in order leave the planner no other index. Ids of sets come
-- before 'b' in any collation, and behind it those of payloads, of which a session may have many. Uploads cost at most what the tenant has, as for
-- count_uploads. Index: blobs_pkey, sets_session_idx, set_files_pkey, uploads_sha256_idx.
select b.sha256
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 between %(sha256)s and %(sha256)s and b.size_bytes = %(size_bytes)s and b.state = 'STORED'
    and (
        %(session_id)s::text = ''
        or (
            select true from sets s
            where s.tenant_id = %(tenant_id)s and s.session_id between %(session_id)s and %(session_id)s and s.set_id < 'b'
                and starts_with(s.set_id, 'att_') and s.state in ('STAGED', 'ATTACHED')
                and (
                    select true from set_files f
                    where f.tenant_id = s.tenant_id and f.set_id between s.set_id and s.set_id and f.sha256 = %(sha256)s
                    order by f.set_id, f.position
                    limit 1
                )
            order by s.session_id, s.set_id
            limit 1
        )
        or (
            select true from uploads u
            where u.tenant_id = %(tenant_id)s and u.sha256 between %(sha256)s and %(sha256)s and u.state = 'COMPLETE'
                and u.session_id = %(session_id)s
            order by u.sha256
            limit 1
        )
    )
order by b.sha256
limit 1
for share of b;

-- name: take_upload
-- The upload is locked by lock_upload. Index: uploads_pkey.
update uploads
set generation = generation + 1, expire_time = now() + make_interval(secs => %(ttl_seconds)s)
where tenant_id = %(tenant_id)s and upload_id = %(row_id)s and state = 'OPEN'
returning generation;

-- name: parts_of_upload
-- No lock: parts change under the lock of their upload alone. Index: upload_parts_pkey.
select p.part_number, p.size_bytes, p.etag
from upload_parts p
where p.tenant_id = %(tenant_id)s and p.upload_id = %(row_id)s
order by p.part_number;

-- name: set_multipart
-- Locks the upload. Gives nothing to who was taken over. Index: uploads_pkey.
update uploads
set multipart_id = %(multipart_id)s
where tenant_id = %(tenant_id)s and upload_id = %(row_id)s and session_id = %(session_id)s
    and generation = %(generation)s and state = 'OPEN'
returning upload_id;

-- name: add_part
-- Locks the upload. Gives nothing to who was taken over. Index: uploads_pkey, upload_parts_pkey.
with held as (
    update uploads
    set expire_time = now() + make_interval(secs => %(ttl_seconds)s)
    where tenant_id = %(tenant_id)s and upload_id = %(row_id)s and session_id = %(session_id)s
        and generation = %(generation)s and state = 'OPEN'
    returning tenant_id, upload_id
)
insert into upload_parts (tenant_id, upload_id, part_number, size_bytes, etag)
select h.tenant_id, h.upload_id, %(part_number)s, %(size_bytes)s, %(etag)s from held h
returning part_number;

-- name: store_uploaded_blob
-- Locks the blob: waits for whoever is deleting it. One that is stored already stays where it is. Index: blobs_pkey.
insert into blobs as b (tenant_id, sha256, size_bytes, state, object_key)
values (%(tenant_id)s, %(sha256)s, %(size_bytes)s, 'STORED', %(object_key)s)
on conflict (tenant_id, sha256) do update
set state = 'STORED', state_time = now(), object_key = case b.state when 'STORED' then b.object_key else excluded.object_key end
returning b.object_key;

-- name: complete_upload
-- Locks the upload. Gives nothing to who was taken over. Index: uploads_pkey.
update uploads
set state = 'COMPLETE', multipart_id = '', expire_time = now() + make_interval(secs => %(ttl_seconds)s)
where tenant_id = %(tenant_id)s and upload_id = %(row_id)s and session_id = %(session_id)s
    and generation = %(generation)s and state = 'OPEN'
returning upload_id;

-- name: keep_upload
-- The upload is locked by lock_upload. Writes nothing while more than half of its time is left. Index: uploads_pkey.
update uploads
set expire_time = now() + make_interval(secs => %(ttl_seconds)s)
where tenant_id = %(tenant_id)s and upload_id = %(row_id)s and state = 'COMPLETE'
    and expire_time < now() + make_interval(secs => %(ttl_seconds)s) / 2;

-- name: forget_parts
-- The upload is locked by complete_upload. Index: upload_parts_pkey.
delete from upload_parts
where tenant_id = %(tenant_id)s and upload_id = %(row_id)s;

-- name: abort_upload
-- Locks the upload; whoever writes to it is refused from then on. One that is COMPLETE, or of another generation, is left alone.
-- Index: uploads_pkey.
update uploads
set state = 'ABORTING', generation = generation + 1
where tenant_id = %(tenant_id)s and upload_id = %(row_id)s and session_id = %(session_id)s
    and generation = %(generation)s and state <> 'COMPLETE'
returning upload_id as row_id, object_key, multipart_id;

-- name: abort_expired_upload
-- Locks the upload; whoever writes to it is refused from then on. One that is COMPLETE, or whose time is not over, is left alone.
-- Index: uploads_pkey.
update uploads
set state = 'ABORTING', generation = generation + 1
where tenant_id = %(tenant_id)s and upload_id = %(row_id)s and state <> 'COMPLETE' and (expire_time < now() or state = 'ABORTING')
returning upload_id as row_id, object_key, multipart_id;

-- name: forget_upload
-- Its parts go with it. Index: uploads_pkey, upload_parts_pkey.
delete from uploads
where tenant_id = %(tenant_id)s and upload_id = %(row_id)s and state = 'ABORTING';

-- name: forget_expired_upload
-- Index: uploads_pkey.
delete from uploads
where tenant_id = %(tenant_id)s and upload_id = %(row_id)s and state = 'COMPLETE' and expire_time < now()
returning sha256;
