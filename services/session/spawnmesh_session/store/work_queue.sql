-- name: insert_entry
-- Locks the row. If it exists, only its time changes. Index: work_queue_pkey.
insert into work_queue (tenant_id, kind, subject_id, due_time)
values (%(tenant_id)s, %(kind)s, %(subject_id)s, now() + %(due_in)s::interval)
on conflict (tenant_id, kind, subject_id) do update set due_time = excluded.due_time

-- name: insert_entries
-- As insert_entry, for several subjects. Index: work_queue_pkey.
insert into work_queue (tenant_id, kind, subject_id, due_time)
select %(tenant_id)s, %(kind)s, subject_id, now() + %(due_in)s::interval
from unnest(%(subject_ids)s::text[]) as subject_id
on conflict (tenant_id, kind, subject_id) do update set due_time = excluded.due_time

-- name: delay_entry
-- Locks the row if it exists. Index: work_queue_pkey.
update work_queue set due_time = now() + %(due_in)s::interval
where tenant_id = %(tenant_id)s and kind = %(kind)s and subject_id = %(subject_id)s

-- name: delete_entry
-- Locks the row. Index: work_queue_pkey.
delete from work_queue where tenant_id = %(tenant_id)s and kind = %(kind)s and subject_id = %(subject_id)s

-- name: delete_entries
-- Locks the rows. Index: work_queue_pkey.
delete from work_queue
where tenant_id = %(tenant_id)s and kind = %(kind)s and subject_id = any (%(subject_ids)s)

-- name: take_claimable_runs
-- A transaction of its own, in the scope of every tenant. See the function for its locks and
-- indexes.
select * from take_claimable_runs(
    set_config('spawnmesh.tenant', %(tenant_id)s, true), %(limit)s, %(lease_ttl)s, %(runtimes)s
);

-- name: extend_lease
-- Sets the lease to end after lease_ttl. Locks the entry. Index: work_queue_pkey.
update work_queue set due_time = now() + %(lease_ttl)s::interval, leased = true
where tenant_id = %(tenant_id)s and kind = 'RUN' and subject_id = %(run_id)s
returning due_time

-- name: undo_take
-- Makes the run claimable after the pause, and does not count the attempt. Locks the entry.
-- Index: work_queue_pkey.
update work_queue set due_time = now() + %(pause)s::interval, leased = false,
                      attempts_left = attempts_left + 1
where tenant_id = %(tenant_id)s and kind = 'RUN' and subject_id = %(run_id)s

-- name: notify_runners
-- Runners are notified when the transaction commits.
select pg_notify('run_queued', '')

-- name: take_overdue
-- Locks the rows that it takes, skips those that others hold, and makes them due again later. In
-- the scope of every tenant; not for runs. See the function for its indexes.
select * from take_overdue(%(kind)s, %(limit)s, %(share)s, %(busy)s, %(again_in)s)

-- name: take_lost_runs
-- Locks the rows that it takes, skips those that others hold, and puts them behind all others, so
-- that a run that cannot be ended does not hold up the rest. In the scope of every tenant. See the
-- function for its indexes.
select * from take_lost_runs(%(limit)s, %(share)s, %(again_in)s)

-- name: is_lost_run
-- Takes no lock; exact while the run is locked. The deadline has passed, or the row is as it was
-- taken. Index: work_queue_pkey.
select from work_queue
where tenant_id = %(tenant_id)s and kind = 'RUN' and subject_id = %(run_id)s
  and (expire_time <= now() or (attempts_left <= 0 and due_time = %(taken_due_time)s))

-- name: count_live_runs
-- Takes no lock; reads in the scope of every tenant. Index: work_queue_tenant_due_idx, or the whole
-- table.
select count(*) filter (where not (leased and due_time > now())) as waiting,
       count(*) filter (where leased and due_time > now()) as held
from work_queue where kind = 'RUN'

-- name: count_backlog
-- Takes no lock; reads in the scope of every tenant. Counts what is due by kind, with the passes
-- of the retention and the jobs of the job library. Index: work_queue_kind_overdue_idx,
-- tenants_next_retention_idx, and the job library's own.
select kind, count(*) as waiting from work_queue
where kind <> 'RUN' and due_time between '-infinity' and now() group by kind
union all select 'RETAIN', count(*) from tenants where next_retention_time <= now()
union all select 'JOB', count(*) from procrastinate_jobs
          where status = 'todo' and coalesce(scheduled_at, now()) <= now()
