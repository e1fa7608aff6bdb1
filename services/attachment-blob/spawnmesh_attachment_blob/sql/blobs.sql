-- name: lock_blobs_of_set
-- Locks the blobs in the order of their hashes. Index: set_files_pkey, blobs_pkey.
select b.sha256
from blobs b
where b.tenant_id = %(tenant_id)s
    and b.sha256 in (select f.sha256 from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s)
order by b.sha256
for update;

-- name: condemn_blobs
-- The blobs are locked by lock_blobs_of_set, in a statement before this one, so that this one sees what was committed while that one waited.
-- Index: set_files_pkey, blobs_pkey, set_files_sha256_idx, sets_pkey, uploads_sha256_idx.
update blobs b
set state = 'DELETING', state_time = now()
where b.tenant_id = %(tenant_id)s
    and b.sha256 in (select f.sha256 from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s)
    and not exists (
        select from set_files f
        join sets s on s.tenant_id = f.tenant_id and s.set_id = f.set_id
        where f.tenant_id = b.tenant_id and f.sha256 = b.sha256 and f.set_id <> %(set_id)s and s.state <> 'RELEASED'
    )
    and not exists (select from uploads u where u.tenant_id = b.tenant_id and u.sha256 = b.sha256 and u.state = 'COMPLETE')
returning b.object_key;

-- name: lock_condemned_blobs
-- Locks the blobs in the order of their hashes. One that was taken back while this waited is left out: its state is looked at again under the
-- lock. Index: set_files_pkey, blobs_pkey, set_files_sha256_idx, sets_pkey, uploads_sha256_idx.
select b.sha256, b.object_key
from blobs b
where b.tenant_id = %(tenant_id)s
    and b.sha256 in (select f.sha256 from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s)
    and b.state = 'DELETING'
    and not exists (
        select from set_files f
        join sets s on s.tenant_id = f.tenant_id and s.set_id = f.set_id
        where f.tenant_id = b.tenant_id and f.sha256 = b.sha256 and f.set_id <> %(set_id)s and s.state <> 'RELEASED'
    )
    and not exists (select from uploads u where u.tenant_id = b.tenant_id and u.sha256 = b.sha256 and u.state = 'COMPLETE')
order by b.sha256
for update of b;

-- name: forget_blobs
-- The blobs are locked by lock_condemned_blobs. Index: blobs_pkey.
delete from blobs
where tenant_id = %(tenant_id)s and sha256 = any(%(hashes)s::text[]);
