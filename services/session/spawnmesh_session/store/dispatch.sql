-- name: insert_dispatch
-- Locks the row. If it exists, only its time changes. Index: dispatch_pkey.
insert into dispatch (tenant_id, kind, subject_id, due_time)
values (%(tenant_id)s, %(kind)s, %(subject_id)s, now() + %(due_in)s::interval)
on conflict (tenant_id, kind, subject_id) do update set due_time = excluded.due_time

-- name: insert_many_dispatch
-- As insert_dispatch, for several subjects. Index: dispatch_pkey.
insert into dispatch (tenant_id, kind, subject_id, due_time)
select %(tenant_id)s, %(kind)s, subject_id, now() + %(due_in)s::interval
from unnest(%(subject_ids)s::text[]) as subject_id
on conflict (tenant_id, kind, subject_id) do update set due_time = excluded.due_time

-- name: delay_dispatch
-- Locks the row if it exists. Index: dispatch_pkey.
update dispatch set due_time = now() + %(due_in)s::interval
where tenant_id = %(tenant_id)s and kind = %(kind)s and subject_id = %(subject_id)s

-- name: delete_dispatch
-- Locks the row. Index: dispatch_pkey.
delete from dispatch where tenant_id = %(tenant_id)s and kind = %(kind)s and subject_id = %(subject_id)s

-- name: delete_many_dispatch
-- Locks the rows. Index: dispatch_pkey.
delete from dispatch
where tenant_id = %(tenant_id)s and kind = %(kind)s and subject_id = any (%(subject_ids)s)

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
-- taken. Index: dispatch_pkey.
select from dispatch
where tenant_id = %(tenant_id)s and kind = 'RUN' and subject_id = %(run_id)s
  and (expire_time <= now() or (attempts_left <= 0 and due_time = %(taken_due_time)s))

-- name: count_live_runs
-- Takes no lock; reads in the scope of every tenant. Index: dispatch_tenant_due_idx, or the whole
-- table.
select count(*) filter (where not (leased and due_time > now())) as waiting,
       count(*) filter (where leased and due_time > now()) as held
from dispatch where kind = 'RUN'

-- name: count_backlog
-- Takes no lock; reads in the scope of every tenant. Counts what is due by kind, with the passes
-- of the retention and the jobs of the job library. Index: dispatch_kind_overdue_idx,
-- tenants_next_retention_idx, and the job library's own.
select kind, count(*) as waiting from dispatch
where kind <> 'RUN' and due_time between '-infinity' and now() group by kind
union all select 'RETAIN', count(*) from tenants where next_retention_time <= now()
union all select 'JOB', count(*) from procrastinate_jobs
          where status = 'todo' and coalesce(scheduled_at, now()) <= now()
