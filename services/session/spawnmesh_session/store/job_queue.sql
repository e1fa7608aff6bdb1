-- name: revive_jobs
-- Locks the jobs whose worker has sent no heartbeat for %(silent_for)s, and skips those that
-- another pass holds. A worker sends a heartbeat every ten seconds. Tables of the job library,
-- which hold few rows. Index: idx_procrastinate_jobs_worker_not_null.
update procrastinate_jobs set status = 'todo', worker_id = null, attempts = attempts + 1
where id in (
    select j.id from procrastinate_jobs j
    where j.status = 'doing'
      and not exists (select from procrastinate_workers w
                      where w.id = j.worker_id and w.last_heartbeat >= now() - %(silent_for)s::interval)
    for update of j skip locked)

-- name: drop_waiting_jobs
-- Locks the tenant's jobs that no worker has. The job library's table has no index for it, and few
-- rows.
delete from procrastinate_jobs where status = 'todo' and args ->> 'tenant_id' = %(tenant_id)s

-- name: count_working_jobs
-- Takes no lock. The job library's table has no index for it, and few rows.
select count(*) as working from procrastinate_jobs
where status = 'doing' and args ->> 'tenant_id' = %(tenant_id)s
