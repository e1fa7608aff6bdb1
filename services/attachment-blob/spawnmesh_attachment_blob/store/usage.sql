-- The counters of a tenant are in its row. Each transaction locks that row last, and commits: so
-- it waits for no other lock while it holds this one.

-- name: add_usage
-- Locks the tenant, so that of two sets the second sees the bytes of the first. If
-- %(limited_bytes)s do not fit into free_bytes, the stored bytes become null, which the table
-- refuses: the transaction is rolled back without a round trip between this statement and its
-- commit. Index: attachment_tenants_pkey.
update attachment_tenants
set stored_bytes = case when %(limited_bytes)s <= free_bytes then stored_bytes + %(stored_bytes)s end,
    uploading_bytes = uploading_bytes + %(uploading_bytes)s
where tenant_id = %(tenant_id)s;

-- name: reserve_upload
-- Locks the tenant, so that of two uploads the second sees the bytes of the first. Updates nothing
-- if the bytes do not fit. Index: attachment_tenants_pkey.
update attachment_tenants
set uploading_bytes = uploading_bytes + %(size_bytes)s
where tenant_id = %(tenant_id)s
    and %(size_bytes)s <= free_bytes
returning tenant_id;

-- name: get_usage
-- Takes no lock. Index: attachment_tenants_pkey.
select stored_bytes, uploading_bytes, max_stored_bytes
from attachment_tenants
where tenant_id = %(tenant_id)s;
