-- name: bar_tenant
-- Waits until every transaction that has entered the tenant has ended. Transactions that enter it
-- now wait until this one has ended.
select pg_advisory_xact_lock(hashtextextended('begin something in ' || %(tenant_id)s, 0))

-- name: insert_tenant_deletion
-- Does nothing if the deletion has begun. Keeps the version of the tenant's settings.
-- Index: tenant_deletions_pkey, tenants_pkey.
insert into tenant_deletions (tenant_id, settings_version)
select %(tenant_id)s,
       coalesce((select t.settings_version from tenants t where t.tenant_id = %(tenant_id)s), 0)
on conflict do nothing returning tenant_id

-- name: get_tenant_deletion
-- Takes no lock. Index: tenant_deletions_pkey.
select * from tenant_deletions where tenant_id = %(tenant_id)s

-- name: lock_tenant_deletion
-- Locks the row. Returns no row if another pass has advanced, or the tenant was created again.
-- Index: tenant_deletions_pkey.
select from tenant_deletions
where tenant_id = %(tenant_id)s and request_time = %(request_time)s and step = %(step)s
for update

-- name: forget_tenant_deletion
-- Locks the row. Only a deletion that is DONE. Index: tenant_deletions_pkey.
delete from tenant_deletions where tenant_id = %(tenant_id)s and step = 'DONE'

-- name: report_progress
-- Locks the row, and adds to its counts. Index: tenant_deletions_pkey.
update tenant_deletions
set killed_run_count = killed_run_count + %(killed_run_count)s,
    deleted_session_count = deleted_session_count + %(deleted_session_count)s,
    deleted_transcript_count = deleted_transcript_count + %(deleted_transcript_count)s,
    deleted_object_count = deleted_object_count + %(deleted_object_count)s,
    settle_time = greatest(settle_time, now() + %(settle_in)s::interval)
where tenant_id = %(tenant_id)s and request_time = %(request_time)s

-- name: record_stall
-- Locks the row. Index: tenant_deletions_pkey.
update tenant_deletions set stalled_by = %(stalled_by)s
where tenant_id = %(tenant_id)s and request_time = %(request_time)s and step <> 'DONE'

-- name: set_step
-- Locks the row. Index: tenant_deletions_pkey.
update tenant_deletions
set step = %(step)s, stalled_by = '', end_time = case when %(step)s = 'DONE' then now() end
where tenant_id = %(tenant_id)s

-- name: is_settled
-- Takes no lock. Index: tenant_deletions_pkey.
select from tenant_deletions where tenant_id = %(tenant_id)s and settle_time <= now()

-- name: has_peer_work
-- Takes no lock. Index: jobs_pkey.
select from jobs
where tenant_id = %(tenant_id)s
  and kind in ('undo_spawn', 'clean_up_spawn', 'delete_session', 'delete_family', 'push_settings')
limit 1

-- name: purge_jobs
-- Locks the rows. All jobs except those of operations. Index: jobs_pkey.
delete from jobs where tenant_id = %(tenant_id)s and kind <> 'operation'
