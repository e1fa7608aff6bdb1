-- name: wait_for_stores
-- Takes the advisory lock of stores, exclusive. Waits for each transaction that stores something
-- for the tenant; new ones wait until this transaction ends.
select pg_advisory_xact_lock(hashtextextended('store something of ' || %(tenant_id)s, 0));

-- name: mark_purging
-- Locks the tenant. Updates nothing if the tenant was created anew since it had this version.
-- Index: attachment_tenants_pkey.
update attachment_tenants
set purging = true, purged_version = greatest(purged_version, %(settings_version)s)
where tenant_id = %(tenant_id)s
    and (%(settings_version)s = 0 or greatest(settings_version, purged_version) <= %(settings_version)s);

-- name: lock_purge
-- Locks the tenant. A row with `is_to_purge` false belongs to a tenant that was created anew, or
-- says that the purge has ended. A finished purge leaves no row. Index: attachment_tenants_pkey.
select
    purging
    and (%(settings_version)s = 0 or greatest(settings_version, purged_version) <= %(settings_version)s)
    as is_to_purge
from attachment_tenants
where tenant_id = %(tenant_id)s
for update;

-- name: purge_set_files
-- Waits for transactions that stage or release these sets. Deletes all files of a set, and so a few
-- more than the limit. Index: set_files_pkey.
with page as materialized (
    select set_id from set_files
    where tenant_id = %(tenant_id)s
    order by set_id, position
    limit (select %(limit)s::bigint)
)
delete from set_files
where tenant_id = %(tenant_id)s and set_id <= (select max(set_id) from page);

-- name: purge_sets
-- Waits for transactions that stage or release these sets. Index:
-- sets_pkey.
with page as materialized (
    select set_id from sets
    where tenant_id = %(tenant_id)s
    order by set_id
    limit (select %(limit)s::bigint)
)
delete from sets
where tenant_id = %(tenant_id)s and set_id <= (select max(set_id) from page);

-- name: purge_uploads
-- Waits for transactions that write to these uploads. Deletes their parts with them.
-- Index: uploads_pkey.
with page as materialized (
    select row_id from uploads
    where tenant_id = %(tenant_id)s
    order by row_id
    limit (select %(limit)s::bigint)
)
delete from uploads
where tenant_id = %(tenant_id)s and row_id <= (select max(row_id) from page);

-- name: purge_blobs
-- Waits for transactions that store or delete these blobs. Index:
-- blobs_pkey.
with page as materialized (
    select sha256 from blobs
    where tenant_id = %(tenant_id)s
    order by sha256
    limit (select %(limit)s::bigint)
)
delete from blobs
where tenant_id = %(tenant_id)s and sha256 <= (select max(sha256) from page);

-- name: purge_tenant
-- Locks the tenant. Index: attachment_tenants_pkey.
delete from attachment_tenants
where tenant_id = %(tenant_id)s and purging;

-- name: has_rows
-- Takes no lock. Index: the primary key of each table. Parts have no rows without their upload.
select
    exists (select true from attachment_tenants t where t.tenant_id = %(tenant_id)s)
    or exists (select true from sets s where s.tenant_id = %(tenant_id)s)
    or exists (select true from set_files f where f.tenant_id = %(tenant_id)s)
    or exists (select true from blobs b where b.tenant_id = %(tenant_id)s)
    or exists (select true from uploads u where u.tenant_id = %(tenant_id)s) as has_rows;
