-- name: get_object_key
-- Takes no lock. Index: blobs_pkey.
select b.object_key
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 = %(sha256)s;

-- name: mark_blobs_of_set
-- Locks the set's blobs in the order of their hashes; see the function. Index: set_files_pkey.
select mark_unreferenced_blobs(
    %(tenant_id)s,
    array(select f.sha256 from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s),
    %(set_id)s
) as object_key;

-- name: mark_unreferenced_blobs
-- Locks the blobs in the order of their hashes; see the function.
select mark_unreferenced_blobs(%(tenant_id)s, %(hashes)s::text[], '') as object_key;

-- name: lock_marked_blobs_of_set
-- Locks the set's blobs in the order of their hashes; see the function. Index: set_files_pkey.
select m.sha256, m.object_key
from lock_marked_blobs(
    %(tenant_id)s,
    array(select f.sha256 from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s),
    %(set_id)s
) m;

-- name: lock_marked_blobs
-- Locks the blobs in the order of their hashes; see the function.
select m.sha256, m.object_key
from lock_marked_blobs(%(tenant_id)s, %(hashes)s::text[], '') m;

-- name: delete_blobs
-- The blobs are locked by lock_marked_blobs or by claim_orphan; see the function.
select delete_blobs(%(tenant_id)s, %(hashes)s::text[]);

-- name: claim_orphan
-- Waits for transactions that store the same bytes; later ones wait for this transaction. Inserts
-- nothing if the bytes have a row. Index: blobs_pkey.
insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
values (%(tenant_id)s, %(sha256)s, 0, 'DELETING', %(object_key)s)
on conflict (tenant_id, sha256) do nothing
returning sha256;

-- name: lock_blob_elsewhere
-- Locks the blob if its bytes are stored under another key. No key is ever used again.
-- Index: blobs_pkey.
select b.sha256
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 = %(sha256)s and b.object_key <> %(object_key)s
for update;

-- name: lock_stored_blob
-- Locks the blob, shared with other transactions that refer to it: a transaction that wants to
-- delete it waits, and then sees the reference that this one adds. If a session is given, it finds
-- only bytes that the session's runs can read in a set, or have in an upload that they finished.
-- The ranges with `order by` leave the planner only the named index. Ids of sets sort before 'b'
-- in every collation; a session may have many payloads behind it. `coalesce` keeps set_files from
-- being read by hash: many sets may have the same bytes. Uploads cost at most the
-- tenant's quota, as in count_uploads. Index: blobs_pkey, sets_session_idx, set_files_pkey,
-- uploads_sha256_idx.
select b.sha256
from blobs b
where b.tenant_id = %(tenant_id)s and b.sha256 between %(sha256)s and %(sha256)s
    and b.size_bytes = %(size_bytes)s and b.state = 'STORED'
    and (
        %(session_id)s::text = ''
        or (
            select true from sets s
            where s.tenant_id = %(tenant_id)s and s.session_id between %(session_id)s and %(session_id)s
                and s.set_id < 'b' and starts_with(s.set_id, 'att_') and s.state in ('STAGED', 'ATTACHED')
                and (
                    select true from set_files f
                    where f.tenant_id = s.tenant_id and f.set_id between s.set_id and s.set_id
                        and coalesce(f.sha256, '') = %(sha256)s
                    order by f.set_id, f.position
                    limit 1
                )
            order by s.session_id, s.set_id
            limit 1
        )
        or (
            select true from uploads u
            where u.tenant_id = %(tenant_id)s and u.sha256 between %(sha256)s and %(sha256)s
                and u.state = 'COMPLETE' and u.session_id = %(session_id)s
            order by u.sha256
            limit 1
        )
    )
order by b.sha256
limit 1
for share of b;

-- name: store_uploaded_blob
-- Locks the blob: waits for a transaction that deletes it. A stored blob keeps its key.
-- Index: blobs_pkey.
insert into blobs as b (tenant_id, sha256, size_bytes, state, object_key)
values (%(tenant_id)s, %(sha256)s, %(size_bytes)s, 'STORED', %(object_key)s)
on conflict (tenant_id, sha256) do update
set state = 'STORED', state_time = now(),
    object_key = case b.state when 'STORED' then b.object_key else excluded.object_key end
returning b.object_key;

-- name: mark_lost
-- Locks the blob. Updates nothing if the blob was stored under another key in the meantime. Needs
-- prefer_index_scans. The range with `order by` leaves the planner only the named index.
-- Index: blobs_pkey.
update blobs
set state = 'LOST', state_time = now()
where object_key = %(object_key)s and state = 'STORED' and ctid = (
    select b.ctid from blobs b
    where b.tenant_id = %(tenant_id)s and b.sha256 between %(sha256)s and %(sha256)s
    order by b.sha256
    limit 1
);

-- name: mark_found
-- Locks the blob. A blob without references is left to its removal. Needs prefer_index_scans.
-- Found as in mark_lost. Index: blobs_pkey; see also the function.
update blobs
set state = 'STORED', state_time = now()
where object_key = %(object_key)s and state = 'LOST'
    and is_referenced(%(tenant_id)s, %(sha256)s, '') and ctid = (
        select b.ctid from blobs b
        where b.tenant_id = %(tenant_id)s and b.sha256 between %(sha256)s and %(sha256)s
        order by b.sha256
        limit 1
    );
