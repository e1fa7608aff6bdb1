-- name: enqueue_jobs
-- Inserts jobs of the tenant. A job whose key is known stays as it is. Workers are notified of the
-- kinds of the new jobs that are due, when the transaction commits. Index: jobs_pkey.
with added as (
    insert into jobs (tenant_id, kind, key, due_time, arguments, traceparent)
    select %(tenant_id)s, j.kind, j.key, now() + make_interval(secs => j.due_in), j.arguments, j.traceparent
    from jsonb_to_recordset(%(jobs)s::jsonb)
         as j (kind text, key text, due_in double precision, arguments jsonb, traceparent text)
    on conflict (tenant_id, kind, key) do nothing
    returning kind, due_time
)
select pg_notify('jobs' || (select suffix from _spawnmesh_channels), kind)
from added where due_time <= now()

-- name: reschedule_job
-- Inserts the job. If it exists, it is due anew and has all its attempts again, also if a worker
-- has claimed it: the end of that attempt changes nothing. Workers are notified when the
-- transaction commits, if the job is due. Locks the row. Index: jobs_pkey.
with rescheduled as (
    insert into jobs (tenant_id, kind, key, due_time, arguments, traceparent)
    values (%(tenant_id)s, %(kind)s, %(key)s, now() + %(due_in)s::interval, %(arguments)s, %(traceparent)s)
    on conflict (tenant_id, kind, key) do update
    set due_time = excluded.due_time, claim_id = null, attempt_count = 0, dead_time = null,
        create_time = excluded.create_time
    returning kind, due_time
)
select pg_notify('jobs' || (select suffix from _spawnmesh_channels), kind)
from rescheduled where due_time <= now()

-- name: delay_job
-- Makes a job due after %(due_in)s that the worker has claimed, or that no worker has if claim_id
-- is null. Locks the row. Does nothing if the claim was lost, or if a worker has the job. Index:
-- jobs_pkey.
update jobs set due_time = now() + %(due_in)s::interval
where tenant_id = %(tenant_id)s and kind = %(kind)s and key = %(key)s
  and claim_id is not distinct from %(claim_id)s::uuid

-- name: delete_jobs
-- Locks the rows, whether or not a worker has claimed them. Index: jobs_pkey.
delete from jobs where tenant_id = %(tenant_id)s and kind = %(kind)s and key = any (%(keys)s)

-- name: delete_jobs_of_kinds
-- Locks the rows. Returns a row for each job that a worker had claimed. Index: jobs_pkey.
with gone as (
    delete from jobs where tenant_id = %(tenant_id)s and kind = any (%(kinds)s::text[]) returning claim_id
)
select from gone where claim_id is not null

-- name: claim_jobs
-- Takes at most %(limit)s due jobs of the kind, in the scope of every tenant: their ids alone. Of
-- each tenant it takes at most %(share)s less its jobs in %(busy)s. The order is round-robin over
-- tenants, and oldest first within a tenant. Locks each job, skips those that others hold, and
-- makes it due again after %(claim_for)s. Goes from tenant to tenant and reads no more of one than
-- its share. Updates by lists of keys: for a join, the planner would read the whole of a small
-- table. Index: jobs_due_idx, jobs_pkey.
with recursive waiting as (
    (select j.tenant_id from job_queue j
     where j.kind = %(kind)s and j.dead_time is null
     order by j.tenant_id limit 1)
    union all
    select (select j.tenant_id from job_queue j
            where j.kind = %(kind)s and j.dead_time is null and j.tenant_id > w.tenant_id
            order by j.tenant_id limit 1)
    from waiting w where w.tenant_id is not null
), shares as (
    select w.tenant_id, coalesce((%(busy)s::jsonb ->> w.tenant_id)::integer, 0) as busy
    from waiting w where w.tenant_id is not null
), chosen as (
    select s.tenant_id, due.key
    from shares s
    cross join lateral (
        select j.key, j.due_time from job_queue j
        where j.kind = %(kind)s and j.dead_time is null and j.tenant_id = s.tenant_id
          and j.due_time <= now()
        order by j.due_time limit greatest(%(share)s - s.busy, 0)
    ) due
    order by s.busy + row_number() over (partition by s.tenant_id order by due.due_time), due.due_time
    limit %(limit)s
), locked as (
    select j.tenant_id, j.key
    from chosen c
    cross join lateral (
        select tenant_id, key from job_queue
        where tenant_id = c.tenant_id and kind = %(kind)s and key = c.key
          and due_time <= now()
        for update skip locked
    ) j
)
update job_queue j
set due_time = now() + %(claim_for)s::interval, claim_id = gen_random_uuid(),
    attempt_count = j.attempt_count + 1
where j.kind = %(kind)s and j.tenant_id = any (array(select tenant_id from locked))
  and j.key = any (array(select key from locked))
  and (j.tenant_id, j.key) in (select tenant_id, key from locked)
returning j.tenant_id, j.kind, j.key, j.claim_id, j.attempt_count as attempt

-- name: read_claimed_jobs
-- Takes no lock. What the claim does not show: it is read in the scope of the tenant. A job whose
-- claim was lost is left out. Index: jobs_pkey.
select claim_id, arguments, traceparent from jobs
where tenant_id = %(tenant_id)s and kind = any (%(kinds)s::text[]) and key = any (%(keys)s::text[])
  and claim_id = any (%(claim_ids)s::uuid[])

-- name: complete_job
-- Locks the row. Does nothing if the claim was lost. Index: jobs_pkey.
delete from jobs
where tenant_id = %(tenant_id)s and kind = %(kind)s and key = %(key)s and claim_id = %(claim_id)s

-- name: retry_job
-- Ends a failed attempt: the job is due again after the pause, or dead if it was the last attempt
-- or the job is older than %(kept_for)s. Locks the row. Returns no row, and does nothing, if the
-- claim was lost. Index: jobs_pkey.
update jobs
set due_time = now() + %(pause)s::interval, claim_id = null, last_error = %(error)s,
    dead_time = case when %(is_last)s or create_time + %(kept_for)s::interval <= now() then now() end
where tenant_id = %(tenant_id)s and kind = %(kind)s and key = %(key)s and claim_id = %(claim_id)s
returning dead_time is not null as is_dead

-- name: run_job_again
-- Ends an attempt that did not fail: the job is due again after the pause, with all its attempts.
-- Locks the row. Does nothing if the claim was lost. Index: jobs_pkey.
update jobs
set due_time = now() + %(pause)s::interval, claim_id = null, attempt_count = 0, last_error = %(error)s,
    arguments = coalesce(%(arguments)s::jsonb, arguments)
where tenant_id = %(tenant_id)s and kind = %(kind)s and key = %(key)s and claim_id = %(claim_id)s

-- name: return_job
-- Ends an attempt that was interrupted, which does not count: the job is due now. Notifies workers.
-- Locks the row. Does nothing if the claim was lost. Index: jobs_pkey.
with returned as (
    update jobs set due_time = now(), claim_id = null, attempt_count = attempt_count - 1
    where tenant_id = %(tenant_id)s and kind = %(kind)s and key = %(key)s and claim_id = %(claim_id)s
    returning kind
)
select pg_notify('jobs' || (select suffix from _spawnmesh_channels), kind) from returned

-- name: list_jobs
-- Takes no lock. A page of ids of jobs, in their order and in the scope of one or of every tenant.
-- Index: jobs_pkey.
select tenant_id, kind, key from job_queue
where (tenant_id, kind, key) > (%(after_tenant)s, %(after_kind)s, %(after_key)s)
  and (%(kind)s::text is null or kind = %(kind)s)
order by tenant_id, kind, key
limit %(limit)s

-- name: list_dead_jobs
-- As list_jobs, of dead jobs. Index: jobs_dead_idx.
select tenant_id, kind, key from job_queue
where dead_time >= '-infinity' and (tenant_id, kind, key) > (%(after_tenant)s, %(after_kind)s, %(after_key)s)
  and (%(kind)s::text is null or kind = %(kind)s)
order by tenant_id, kind, key
limit %(limit)s

-- name: get_jobs
-- Takes no lock. The jobs of the tenant with these kinds and keys, in their order. Index:
-- jobs_pkey.
select j.tenant_id, j.kind, j.key, nullif(j.due_time, 'infinity') as due_time, j.attempt_count,
       j.claim_id is not null and j.due_time > now() as is_working, j.arguments, j.traceparent,
       j.create_time, j.dead_time, j.last_error
from unnest(%(kinds)s::text[], %(keys)s::text[]) as listed (kind, key)
join jobs j on j.tenant_id = %(tenant_id)s and j.kind = listed.kind and j.key = listed.key
order by j.kind, j.key

-- name: retry_dead_job
-- Makes a job due now, with all its attempts, unless a worker has it. Notifies workers. Locks the
-- row. Returns no row if there is none, or a worker has it. Index: jobs_pkey.
with due as (
    update jobs
    set due_time = now(), claim_id = null, attempt_count = 0, dead_time = null, create_time = now()
    where tenant_id = %(tenant_id)s and kind = %(kind)s and key = %(key)s
      and (claim_id is null or due_time <= now())
    returning kind
)
select pg_notify('jobs' || (select suffix from _spawnmesh_channels), kind) from due

-- name: discard_job
-- Deletes a dead job. Locks the row. Returns no row if there is none. Index: jobs_pkey.
delete from jobs
where tenant_id = %(tenant_id)s and kind = %(kind)s and key = %(key)s and dead_time is not null
returning key

-- name: get_job_state
-- Takes no lock. Index: jobs_pkey.
select dead_time is not null as is_dead from jobs
where tenant_id = %(tenant_id)s and kind = %(kind)s and key = %(key)s

-- name: count_jobs
-- Takes no lock; reads in the scope of every tenant. A job that waits for its next attempt counts
-- as waiting; one that was enqueued for later, or is held, does not. Index: jobs_due_idx,
-- jobs_dead_idx.
select kind,
       count(*) filter (where is_waiting) as waiting,
       count(*) filter (where is_working) as working,
       coalesce(extract(epoch from now() - min(create_time) filter (where is_waiting)), 0)::float8
           as oldest_seconds,
       0::bigint as dead
from (
    select kind, create_time,
           due_time <= now() or claim_id is null and attempt_count > 0 and due_time < 'infinity'
               as is_waiting,
           claim_id is not null and due_time > now() as is_working
    from job_queue where dead_time is null
) alive
group by kind
union all
select kind, 0, 0, 0, count(*) from job_queue where dead_time >= '-infinity' group by kind
