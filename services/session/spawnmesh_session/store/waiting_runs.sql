-- name: park_run
-- Locks the run. It waits for a person and is held by no runner. Does not count as an attempt.
-- Returns no row if the run is not held at the epoch. The transaction has read the time before.
-- Index: runs_pkey.
update runs set state = 'WAITING_APPROVAL', attempt_count = attempt_count - 1,
                approval_count = approval_count + 1, approval_id = %(approval_id)s, wait_time = %(now)s,
                uncounted_millis = uncounted_millis
                    + greatest(extract(epoch from %(now)s - coalesce(counted_time, %(now)s)) * 1000,
                               0)::bigint
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s
  and state in ('RUNNING', 'FINALIZING')
returning *

-- name: park_run_for_budget
-- Locks the run. It waits for a budget and is held by no runner. Does not count as an attempt.
-- Returns no row if the run is not held at the epoch. The transaction has read the time before.
-- Index: runs_pkey.
update runs set state = 'WAITING_BUDGET', attempt_count = attempt_count - 1,
                budget_session_id = %(budget_session_id)s, wait_time = %(now)s,
                usage = coalesce(%(usage)s, usage),
                uncounted_millis = uncounted_millis
                    + greatest(extract(epoch from %(now)s - coalesce(counted_time, %(now)s)) * 1000,
                               0)::bigint
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s
  and state in ('RUNNING', 'FINALIZING')
returning *

-- name: wait_on
-- Locks the run, which waits for a budget. Index: runs_pkey.
update runs set budget_session_id = %(budget_session_id)s
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and state = 'WAITING_BUDGET'

-- name: list_waiting_runs
-- Takes no lock. Runs that wait for the budget of the session, by their ids. Index:
-- runs_budget_idx.
select run_id from runs
where tenant_id = %(tenant_id)s and budget_session_id = %(budget_session_id)s and budget_session_id > ''
  and run_id > %(after_id)s
order by run_id
limit %(limit)s

-- name: unpark_run
-- Locks the run. It is queued again, until another deadline. Returns no row if the run does not
-- wait. The transaction has read the time before. Index: runs_pkey.
update runs set state = 'QUEUED', queue_time = %(now)s, approval_id = '', budget_session_id = '',
                wait_time = null, deadline_time = %(deadline_time)s
where tenant_id = %(tenant_id)s and run_id = %(run_id)s
  and state in ('WAITING_APPROVAL', 'WAITING_BUDGET')
returning *
