-- name: insert_dispatch
-- Locks the row where it is there already, and only moves its time. Index: dispatch_pkey.
insert into dispatch (tenant_id, kind, subject_id, due_time) values (%(tenant_id)s, %(kind)s, %(subject_id)s, now() + %(due_in)s::interval)
on conflict (tenant_id, kind, subject_id) do update set due_time = excluded.due_time

-- name: delete_dispatch
-- Locks the row. Index: dispatch_pkey.
delete from dispatch where tenant_id = %(tenant_id)s and kind = %(kind)s and subject_id = %(subject_id)s

-- name: insert_deletions
-- Locks the rows where they are there already, and only moves their time. Index: dispatch_pkey.
insert into dispatch (tenant_id, kind, subject_id, due_time)
select %(tenant_id)s, 'DELETE', session_id, now() + %(due_in)s::interval from unnest(%(session_ids)s::text[]) as session_id
on conflict (tenant_id, kind, subject_id) do update set due_time = excluded.due_time

-- name: delete_many_dispatch
-- Locks the rows. Index: dispatch_pkey.
delete from dispatch where tenant_id = %(tenant_id)s and kind = %(kind)s and subject_id = any (%(subject_ids)s)

-- name: delay_dispatch
-- Locks the row, if it is there. Index: dispatch_pkey.
update dispatch set due_time = now() + %(due_in)s::interval
where tenant_id = %(tenant_id)s and kind = %(kind)s and subject_id = %(subject_id)s

-- name: lease_dispatch
-- Locks the row: the run is held from now for the lease, and wants attention after it. Index: dispatch_pkey.
update dispatch set due_time = now() + %(lease_ttl)s::interval, leased = true
where tenant_id = %(tenant_id)s and kind = 'RUN' and subject_id = %(run_id)s
returning due_time

-- name: requeue_dispatch
-- Locks the row: the run may be claimed from now on. Index: dispatch_pkey.
update dispatch set due_time = now(), leased = false, attempts_left = attempts_left + 1
where tenant_id = %(tenant_id)s and kind = 'RUN' and subject_id = %(run_id)s

-- name: notify_queue
-- Heard when the transaction commits.
select pg_notify('run_queued', '')

-- name: take_claimable_runs
-- A transaction of its own, in the scope of every tenant. See the function for its locks and its index.
select * from take_claimable_runs(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(limit)s, %(lease_ttl)s, %(runtimes)s);

-- name: take_lost_runs
-- Locks the rows taken, skips those that others hold, and puts them behind all others, so that one that cannot be ended keeps no other waiting;
-- in the scope of every tenant. See the function for its indexes.
select * from take_lost_runs(%(limit)s, %(share)s, %(again_in)s)

-- name: is_lost_run
-- Locks nothing; exact while the run is locked. Its time is over, or nobody has touched it since it was taken. Index: dispatch_pkey.
select from dispatch
where tenant_id = %(tenant_id)s and kind = 'RUN' and subject_id = %(run_id)s
  and (expire_time <= now() or (attempts_left <= 0 and due_time = %(taken_due_time)s))

-- name: take_overdue
-- Locks the rows taken, skips those that others hold, and lets them wait again; in the scope of every tenant. No runs. See the function for its
-- indexes.
select * from take_overdue(%(kind)s, %(limit)s, %(share)s, %(busy)s, %(again_in)s)

-- name: insert_end
-- Does nothing where it waits already. Whoever tells observers hears when the transaction commits. Index: dispatch_pkey.
with waiting as (
    insert into dispatch (tenant_id, kind, subject_id, due_time, expire_time, attempts_left, details)
    values (%(tenant_id)s, 'END', %(subject_id)s, now(), now() + %(kept_for)s::interval, %(attempts_left)s, %(details)s)
    on conflict (tenant_id, kind, subject_id) do nothing
    returning tenant_id
)
select pg_notify('end_waits', '') from waiting

-- name: put_off_end
-- Locks the row: it waits as long again as it has waited since it came, within bounds, and has so many tries less. Index: dispatch_pkey.
update dispatch set
    due_time = now() + least(greatest(now() - (expire_time - %(kept_for)s::interval), %(at_least)s::interval), %(at_most)s::interval),
    attempts_left = attempts_left - %(used)s
where tenant_id = %(tenant_id)s and kind = 'END' and subject_id = %(subject_id)s
returning expire_time <= now() as is_over

-- name: drop_ends
-- Locks the rows. Index: dispatch_pkey.
delete from dispatch where tenant_id = %(tenant_id)s and kind = 'END'

-- name: revive_jobs
-- Locks the jobs whose worker has gone without a word, and skips those that another sweep holds: they are to be worked on again. A worker says every
-- ten seconds that it is there. The queue's own tables. Index: idx_procrastinate_jobs_worker_not_null, and few rows.
update procrastinate_jobs set status = 'todo', worker_id = null, attempts = attempts + 1
where id in (
    select j.id from procrastinate_jobs j
    where j.status = 'doing'
      and not exists (select from procrastinate_workers w where w.id = j.worker_id and w.last_heartbeat >= now() - %(silent_for)s::interval)
    for update of j skip locked)

-- name: count_live_runs
-- Locks nothing; reads the queue in the scope of every tenant.
select count(*) filter (where not (leased and due_time > now())) as waiting, count(*) filter (where leased and due_time > now()) as held
from dispatch where kind = 'RUN'

-- name: count_backlog
-- Locks nothing; reads the queue and the directory in the scope of every tenant, and the job library's queue. What should have been seen to by now.
select kind, count(*) as waiting from dispatch where kind <> 'RUN' and due_time between '-infinity' and now() group by kind
union all select 'RETAIN', count(*) from tenants where retain_time <= now()
union all select 'JOB', count(*) from procrastinate_jobs where status = 'todo' and coalesce(scheduled_at, now()) <= now()
