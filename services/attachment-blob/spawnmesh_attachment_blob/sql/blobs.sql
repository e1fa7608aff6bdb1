-- name: condemn_blobs_of_set
-- Locks the set's blobs in the order of their hashes; see the function. Index: set_files_pkey.
select condemn_blobs(
    %(tenant_id)s, array(select f.sha256 from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s), %(set_id)s
) as object_key;

-- name: condemn_blobs
-- Locks the blobs in the order of their hashes; see the function.
select condemn_blobs(%(tenant_id)s, %(hashes)s::text[], '') as object_key;

-- name: lock_condemned_blobs_of_set
-- Locks the set's blobs in the order of their hashes; see the function. Index: set_files_pkey.
select c.sha256, c.object_key
from lock_condemned_blobs(
    %(tenant_id)s, array(select f.sha256 from set_files f where f.tenant_id = %(tenant_id)s and f.set_id = %(set_id)s), %(set_id)s
) c;

-- name: lock_condemned_blobs
-- Locks the blobs in the order of their hashes; see the function.
select c.sha256, c.object_key
from lock_condemned_blobs(%(tenant_id)s, %(hashes)s::text[], '') c;

-- name: forget_blobs
-- The blobs are locked, by lock_condemned_blobs or by claim_orphan; see the function.
select forget_blobs(%(tenant_id)s, %(hashes)s::text[]);
