-- name: get_object_key
-- Takes no lock. Index: blobs_pkey.
select b.object_key
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 = %(sha256)s;

-- name: lock_blobs
-- Locks the blobs with these hashes, and those of the set, in the order of their hashes. Waits for
-- transactions that store, delete or refer to one of them. Index: set_files_pkey, blobs_pkey.
select b.sha256
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 = any(%(hashes)s::text[] || array(
    select f.sha256 from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s
))
order by b.sha256
for update of b;

-- name: mark_unreferenced_blobs
-- The blobs are locked by lock_blobs. A separate statement, so that it sees references that were
-- committed while that waited. References of the set do not count. Bytes that were STORED leave the
-- tenant's usage: the blobs have their state from before here. Locks the tenant last.
-- Index: set_files_pkey, blobs_pkey, attachment_tenants_pkey; see blob_references.
with marked as (
update blobs b
set state = 'DELETING', state_time = now()
where b.tenant_id = %(tenant_id)s and b.sha256 = any(%(hashes)s::text[] || array(
        select f.sha256 from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s
    ))
    -- A subquery of one row is never joined, which would read all references of the tenant.
    and (
        select true from blob_references r
        where r.tenant_id = %(tenant_id)s and r.sha256 = b.sha256 and r.set_id is distinct from %(set_id)s
        limit 1
    ) is null
returning b.sha256, b.object_key
),
freed as (
    select coalesce(sum(b.size_bytes), 0) as size_bytes
    from blobs b
    where b.tenant_id = %(tenant_id)s and b.sha256 = any(array(select m.sha256 from marked m))
        and b.state = 'STORED'
),
counted as (
    update attachment_tenants t
    set stored_bytes = t.stored_bytes - (select f.size_bytes from freed f)
    where t.tenant_id = %(tenant_id)s and (select f.size_bytes from freed f) > 0
)
select m.object_key from marked m;

-- name: lock_marked_blobs
-- Locks those of the blobs, and of the set's blobs, that are DELETING, in the order of their
-- hashes. Waits for transactions that store one of them again, and then leaves it out.
-- Index: set_files_pkey, blobs_pkey.
select b.sha256, b.object_key
from blobs b
where b.tenant_id = %(tenant_id)s and b.state = 'DELETING' and b.sha256 = any(%(hashes)s::text[] || array(
    select f.sha256 from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s
))
order by b.sha256
for update of b;

-- name: list_unreferenced_blobs
-- Takes no lock. A separate statement after lock_marked_blobs, so that it sees references that were
-- committed while that waited. References of the set do not count. Index: set_files_pkey,
-- blobs_pkey; see blob_references.
select b.sha256
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 = any(%(hashes)s::text[] || array(
        select f.sha256 from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s
    ))
    and (
        select true from blob_references r
        where r.tenant_id = %(tenant_id)s and r.sha256 = b.sha256 and r.set_id is distinct from %(set_id)s
        limit 1
    ) is null;

-- name: delete_blobs
-- The blobs are locked by lock_marked_blobs or by claim_orphans. Index: blobs_pkey.
delete from blobs
where tenant_id = %(tenant_id)s and sha256 = any(%(hashes)s::text[]);

-- name: claim_orphans
-- Inserts, in the order of their hashes, those of the blobs that have no row. Waits for
-- transactions that store the same bytes; later ones wait for this transaction. Index: blobs_pkey.
insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
select %(tenant_id)s, given.sha256, 0, 'DELETING', given.object_key
from unnest(%(hashes)s::text[], %(keys)s::text[]) as given (sha256, object_key)
order by given.sha256
on conflict (tenant_id, sha256) do nothing
returning sha256;

-- name: lock_blobs_elsewhere
-- Locks, in the order of their hashes, the blobs whose bytes are stored under another key. No key
-- is ever used again. A separate statement after claim_orphans: transactions for which that waited
-- have a row now. Index: blobs_pkey.
select given.object_key
from unnest(%(hashes)s::text[], %(keys)s::text[]) as given (sha256, object_key)
join blobs b on b.tenant_id = %(tenant_id)s and b.sha256 = given.sha256
where b.object_key <> given.object_key
order by b.sha256
for update of b;

-- name: lock_stored_blob
-- Locks the blob, shared with other transactions that refer to it: a transaction that wants to
-- delete it waits, and then sees the reference that this one adds. If a session is given, it finds
-- only bytes that the session's runs can read in a set, or have in an upload that they finished.
-- Ids of sets sort before 'b' in every collation; a session may have many payloads behind it. A
-- subquery of one row is never joined: it looks at the session's sets only, though many sets may
-- have the same bytes. Uploads cost at most the tenant's quota, as in count_uploads.
-- Index: blobs_pkey, sets_session_idx, set_files_sha256_idx, uploads_sha256_idx.
select b.sha256
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 = %(sha256)s
    and b.size_bytes = %(size_bytes)s and b.state = 'STORED'
    and (
        %(session_id)s::text = ''
        or (
            select true from sets s
            where s.tenant_id = %(tenant_id)s and s.session_id = %(session_id)s
                and s.set_id < 'b' and starts_with(s.set_id, 'att_') and s.state in ('STAGED', 'ATTACHED')
                and (
                    select true from set_files f
                    where f.tenant_id = %(tenant_id)s and f.set_id = s.set_id and f.sha256 = %(sha256)s
                    limit 1
                )
            limit 1
        )
        or (
            select true from uploads u
            where u.tenant_id = %(tenant_id)s and u.sha256 = %(sha256)s
                and u.state = 'COMPLETE' and u.session_id = %(session_id)s
            limit 1
        )
    )
for share of b;

-- name: store_uploaded_blob
-- Locks the blob: waits for a transaction that deletes it. A stored blob keeps its key.
-- Index: blobs_pkey.
insert into blobs as b (tenant_id, sha256, size_bytes, state, object_key)
values (%(tenant_id)s, %(sha256)s, %(size_bytes)s, 'STORED', %(object_key)s)
on conflict (tenant_id, sha256) do update
set state = 'STORED', state_time = excluded.state_time,
    object_key = case when b.state = 'STORED' then b.object_key else excluded.object_key end
returning b.object_key;

-- name: mark_lost
-- Locks the blob, then the tenant. Updates nothing if the blob was stored under another key in the
-- meantime. Index: blobs_pkey, attachment_tenants_pkey.
with lost as (
    update blobs
    set state = 'LOST', state_time = now()
    where tenant_id = %(tenant_id)s and sha256 = %(sha256)s and object_key = %(object_key)s
        and state = 'STORED'
    returning size_bytes
)
update attachment_tenants
set stored_bytes = stored_bytes - (select l.size_bytes from lost l)
where tenant_id = %(tenant_id)s and exists (select true from lost);

-- name: mark_found
-- Locks the blob, then the tenant. A blob without references is left to its removal.
-- Index: blobs_pkey, attachment_tenants_pkey; see blob_references.
with found as (
    update blobs
    set state = 'STORED', state_time = now()
    where tenant_id = %(tenant_id)s and sha256 = %(sha256)s and object_key = %(object_key)s
        and state = 'LOST'
        and exists (
            select from blob_references r where r.tenant_id = %(tenant_id)s and r.sha256 = %(sha256)s
        )
    returning size_bytes
)
update attachment_tenants
set stored_bytes = stored_bytes + (select f.size_bytes from found f)
where tenant_id = %(tenant_id)s and exists (select true from found);
