-- name: queue_run
-- Inserts a run with its place in the queue. Fails on runs_one_live_idx where the session has a live run. Its time is that of the statement: the session's
-- lock may have been waited for.
with queued as (
    insert into runs (tenant_id, run_id, session_id, state, queue_time, deadline_time)
    select %(tenant_id)s, %(run_id)s, %(session_id)s, 'QUEUED', queued, queued + %(run_timeout)s::interval from clock_timestamp() as queued
    returning tenant_id, run_id, deadline_time
)
insert into dispatch (tenant_id, kind, subject_id, due_time, expire_time, attempts_left)
select q.tenant_id, 'RUN', q.run_id, now(), q.deadline_time, %(attempts_left)s from queued q

-- name: get_run
-- Locks nothing. Index: runs_pkey.
select * from runs where tenant_id = %(tenant_id)s and run_id = %(run_id)s

-- name: lock_run
-- Locks the run until the transaction ends. Index: runs_pkey.
select * from runs where tenant_id = %(tenant_id)s and run_id = %(run_id)s for update

-- name: lock_live_run
-- Locks the session's live run, if any. Index: runs_one_live_idx.
select * from runs
where tenant_id = (select %(tenant_id)s) and session_id = %(session_id)s and state in ('QUEUED', 'RUNNING', 'FINALIZING') and position >= 0
for update

-- name: list_killed_runs
-- Locks nothing. Only runs that a runner held. Index: runs_newest_idx.
select r.run_id, r.session_id, r.epoch
from unnest(%(session_ids)s::text[]) asked (session_id)
cross join lateral (select * from runs where tenant_id = (select %(tenant_id)s) and session_id = asked.session_id offset 0) r
where r.state = 'KILLED' and r.epoch > 0

-- name: claim_run
-- Locks the run and its session; lock the session before. No row: it has ended meanwhile. Index: runs_pkey, sessions_pkey.
with claim as (
    update sessions set last_epoch = last_epoch + 1
    where tenant_id = %(tenant_id)s
      and session_id = (select session_id from runs
                        where tenant_id = %(tenant_id)s and run_id = %(run_id)s and state in ('QUEUED', 'RUNNING', 'FINALIZING'))
    returning last_epoch
)
update runs set state = 'RUNNING', epoch = claim.last_epoch, attempt_count = attempt_count + 1, runner_id = %(runner_id)s,
                start_time = coalesce(start_time, now())
from claim
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and state in ('QUEUED', 'RUNNING', 'FINALIZING')
returning runs.*, greatest(deadline_time - clock_timestamp(), interval '0') as time_left

-- name: set_run_state
-- Locks the run. Only between states that are not terminal, and not while a draft is being made its answer. Index: runs_pkey.
update runs set state = %(state)s, draft_entry_id = %(draft_entry_id)s, revision_count = greatest(revision_count, %(revision_count)s)
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s
  and (state = 'RUNNING' or state = 'FINALIZING' and final_entry_id = '')
returning *

-- name: decide_run
-- Locks the run: no message is put before the draft any more. No row: it is not held at this epoch. Index: runs_pkey.
update runs set state = 'FINALIZING', draft_entry_id = %(entry_id)s, final_entry_id = %(entry_id)s
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s and state in ('RUNNING', 'FINALIZING')
returning *

-- name: withdraw_decision
-- Locks the run. Index: runs_pkey.
update runs set final_entry_id = ''
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s and final_entry_id = %(entry_id)s and state = 'RUNNING'

-- name: requeue_run
-- Locks the run. Not counted as an attempt. No row: the epoch is not the current one, or it has ended. Index: runs_pkey.
update runs set state = 'QUEUED', attempt_count = attempt_count - 1, queue_time = now()
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s and state in ('RUNNING', 'FINALIZING')
returning *

-- name: end_run
-- Locks the run. A terminal state is set once: no row where it has one, or is not held at the epoch. Index: runs_pkey.
update runs set state = %(state)s, draft_entry_id = coalesce(nullif(%(draft_entry_id)s, ''), draft_entry_id),
                result_text = %(result_text)s, error_reason = %(error_reason)s, error_message = %(error_message)s,
                usage = coalesce(%(usage)s, usage), end_time = now()
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and state in ('QUEUED', 'RUNNING', 'FINALIZING')
  and (%(epoch)s::bigint is null or epoch = %(epoch)s)
returning *
