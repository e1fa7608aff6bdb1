-- name: insert_tenant
-- Does nothing if the tenant exists. Index: tenants_pkey.
insert into tenants (tenant_id, display_name, settings, max_running_run_count, max_queued_run_count,
                     run_weight, settings_version)
values (%(tenant_id)s, %(display_name)s, %(settings)s, %(max_running_run_count)s, %(max_queued_run_count)s,
        %(run_weight)s, %(settings_version)s)
on conflict do nothing

-- name: mark_tenant_ready
-- Locks the tenant. Index: tenants_pkey.
update tenants set ready = true where tenant_id = %(tenant_id)s and not ready

-- name: lock_tenant
-- Locks the tenant until the transaction ends. Index: tenants_pkey.
select tenant_id, display_name, settings, settings_version, ready, create_time, null as deletion
from tenants where tenant_id = %(tenant_id)s for update

-- name: update_tenant
-- Locks the tenant. Writes nothing if it has another version. Makes a pass of the retention due.
-- Index: tenants_pkey.
update tenants
set display_name = %(display_name)s, settings = %(settings)s,
    max_running_run_count = %(max_running_run_count)s, max_queued_run_count = %(max_queued_run_count)s,
    run_weight = %(run_weight)s, settings_version = settings_version + 1, next_retention_time = now()
where tenant_id = %(tenant_id)s and settings_version = %(settings_version)s
returning tenant_id

-- name: join_beginners
-- Waits for a deletion of the tenant that is just beginning, and keeps others from beginning until
-- the transaction ends. The next statement sees whether one has begun.
select pg_advisory_xact_lock_shared(hashtextextended('begin something in ' || %(tenant_id)s, 0))

-- name: get_tenant
-- Takes no lock. Index: tenants_pkey, tenant_deletions_pkey.
select asked.tenant_id, t.display_name, t.settings, t.settings_version, t.ready, t.create_time,
       to_jsonb(d) - 'tenant_id' as deletion
from (select %(tenant_id)s::text as tenant_id) asked
left join tenants t on t.tenant_id = asked.tenant_id
left join tenant_deletions d on d.tenant_id = asked.tenant_id
where t.tenant_id is not null or d.tenant_id is not null

-- name: get_settings
-- Takes no lock. Index: tenants_pkey.
select settings from tenants where tenant_id = %(tenant_id)s

-- name: list_tenants
-- Takes no lock; reads in the scope of every tenant. The ids of a page, which ends before its
-- tenants exceed %(max_bytes)s, but has at least one. found_count exceeds the number of rows unless
-- the page is the last. Index: tenants_pkey, tenant_deletions_pkey.
with page as (
    select tenant_id, size_bytes from tenant_directory
    where tenant_id > %(after_id)s and is_listed
    order by tenant_id
    limit %(page_size)s + 1
), measured as (
    select tenant_id, row_number() over by_id as rank, count(*) over () as found_count,
           sum(size_bytes) over by_id as bytes
    from page
    window by_id as (order by tenant_id)
)
select tenant_id, found_count
from measured
where rank <= %(page_size)s and (bytes <= %(max_bytes)s or rank = 1)
order by rank

-- name: list_tenants_to_retain
-- Takes no lock; reads in the scope of every tenant. Index: tenants_next_retention_idx.
select tenant_id from tenant_directory where next_retention_time <= now()
order by next_retention_time limit 32

-- name: count_tenants_to_retain
-- Takes no lock; reads in the scope of every tenant. Index: tenants_next_retention_idx.
select count(*) as overdue from tenant_directory where next_retention_time <= now()

-- name: list_call_limits
-- Takes no lock; reads in the scope of every tenant. A page of the tenants after this one that have
-- limits of their own. Index: tenants_call_limits_idx.
select tenant_id, call_limits from tenant_directory
where call_limits is not null and tenant_id > %(after_id)s
order by tenant_id limit %(limit)s

-- name: notify_of_call_limits
-- The replicas are notified when the transaction commits.
select pg_notify('call_limits_changed' || suffix, '') from _spawnmesh_channels

-- name: claim_retention
-- Locks the tenant. Returns no row if another pass has claimed the tenant. Index: tenants_pkey.
update tenants set next_retention_time = now() + %(again_in)s::interval
where tenant_id = %(tenant_id)s and next_retention_time <= now()
returning settings

-- name: make_retention_due
-- Locks the tenant. Index: tenants_pkey.
update tenants set next_retention_time = now() where tenant_id = %(tenant_id)s

-- name: delete_tenant
-- Locks the row. Index: tenants_pkey.
delete from tenants where tenant_id = %(tenant_id)s
