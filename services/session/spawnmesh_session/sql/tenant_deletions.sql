-- name: bar_tenant
-- Waits until every transaction that has begun something in the tenant has ended, and makes those that begin now wait until this one has.
select pg_advisory_xact_lock(hashtextextended('begin something in ' || %(tenant_id)s, 0))

-- name: insert_deletion
-- Does nothing where the deletion has begun. Keeps the version that the tenant's settings have. Index: tenant_deletions_pkey, tenants_pkey.
insert into tenant_deletions (tenant_id, settings_version)
select %(tenant_id)s, coalesce((select t.settings_version from tenants t where t.tenant_id = %(tenant_id)s), 0)
on conflict do nothing returning tenant_id

-- name: get_deletion
-- Locks nothing. Index: tenant_deletions_pkey.
select * from tenant_deletions where tenant_id = %(tenant_id)s

-- name: lock_deletion
-- Locks the row. No row: another pass has gone on, or the tenant was created anew. Index: tenant_deletions_pkey.
select from tenant_deletions
where tenant_id = %(tenant_id)s and request_time = %(request_time)s and step = %(step)s
for update

-- name: forget_deletion
-- Locks the row. Only one that is done. Index: tenant_deletions_pkey.
delete from tenant_deletions where tenant_id = %(tenant_id)s and step = 'DONE'

-- name: report_deletion
-- Locks the row, and adds to its counts. Index: tenant_deletions_pkey.
update tenant_deletions
set killed_run_count = killed_run_count + %(killed_run_count)s,
    deleted_session_count = deleted_session_count + %(deleted_session_count)s,
    deleted_transcript_count = deleted_transcript_count + %(deleted_transcript_count)s,
    deleted_object_count = deleted_object_count + %(deleted_object_count)s,
    settle_time = greatest(settle_time, now() + %(settle_in)s::interval)
where tenant_id = %(tenant_id)s and request_time = %(request_time)s

-- name: stall_deletion
-- Locks the row. Index: tenant_deletions_pkey.
update tenant_deletions set stalled_by = %(stalled_by)s
where tenant_id = %(tenant_id)s and request_time = %(request_time)s and step <> 'DONE'

-- name: step_deletion
-- Locks the row. Index: tenant_deletions_pkey.
update tenant_deletions
set step = %(to_step)s, stalled_by = '', end_time = case when %(to_step)s = 'DONE' then now() end
where tenant_id = %(tenant_id)s

-- name: is_settled
-- Locks nothing. Index: tenant_deletions_pkey.
select from tenant_deletions where tenant_id = %(tenant_id)s and settle_time <= now()

-- name: list_live_roots
-- Locks nothing. Sessions that live and whose parents do not. Index: sessions_pkey.
select session_id from sessions s
where tenant_id = (select %(tenant_id)s) and state in ('PROVISIONING', 'ACTIVE')
  and (select p.state from sessions p where p.tenant_id = s.tenant_id and p.session_id = s.parent_session_id) is distinct from 'ACTIVE'
order by session_id limit %(limit)s

-- name: has_clearing
-- Locks nothing. Index: dispatch_pkey.
select from dispatch where tenant_id = %(tenant_id)s and kind in ('SPAWN', 'DELETE', 'SETTINGS') limit 1

-- name: drop_waiting_jobs
-- Locks the jobs that nobody works on. The queue's own table: no index, and few rows.
delete from procrastinate_jobs where status = 'todo' and args ->> 'tenant_id' = %(tenant_id)s

-- name: count_jobs
-- Locks nothing. The queue's own table: no index, and few rows.
select count(*) as working from procrastinate_jobs where status = 'doing' and args ->> 'tenant_id' = %(tenant_id)s

-- name: list_any_sessions
-- Locks nothing. Index: sessions_pkey.
select session_id from sessions where tenant_id = %(tenant_id)s order by session_id limit %(limit)s

-- name: purge_sessions
-- Locks the rows; their runs, messages and events go with them. Index: sessions_pkey, runs_newest_idx, inbox_messages_pkey, session_events_pkey.
delete from sessions where tenant_id = (select %(tenant_id)s) and session_id = any (%(session_ids)s)

-- name: purge_agents
-- Locks the rows. Index: agents_pkey.
delete from agents where tenant_id = %(tenant_id)s

-- name: purge_dispatch
-- Locks the rows. All but the deletion's own. Index: dispatch_pkey.
delete from dispatch where tenant_id = %(tenant_id)s and kind <> 'PURGE'
