-- name: queue_run
-- Locks the session. Fails on runs_one_live_idx where the session has a live run. See the function for its indexes.
select queue_run(%(tenant_id)s, %(session_id)s, %(run_id)s, %(run_timeout)s, %(attempts_left)s)

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

-- name: lock_session_of_run
-- Locks the run's session until the transaction ends. Index: runs_pkey, sessions_pkey.
select * from sessions
where tenant_id = %(tenant_id)s and delete_time is null
  and session_id = (select session_id from runs where tenant_id = %(tenant_id)s and run_id = %(run_id)s)
for update

-- name: lock_parent_of_run
-- Locks the parent of the run's session until the transaction ends; a session's parent never changes. Index: runs_pkey, sessions_pkey.
select * from sessions
where tenant_id = %(tenant_id)s and delete_time is null
  and session_id = (
      select parent_session_id from sessions
      where tenant_id = %(tenant_id)s and session_id = (select session_id from runs where tenant_id = %(tenant_id)s and run_id = %(run_id)s)
  )
for update

-- name: claim_run
-- Locks the run and its session; lock the session before. The run has the session's next epoch, a lease, and its event; where nobody claimed it before, that
-- epoch is its first. `was_held`: nobody has given it back. No row: it has ended meanwhile. Index: runs_pkey, sessions_pkey, dispatch_pkey.
with before as (
    select state <> 'QUEUED' as was_held from runs where tenant_id = %(tenant_id)s and run_id = %(run_id)s
), claim as (
    update sessions set last_epoch = last_epoch + 1, last_cursor = last_cursor + 1
    where tenant_id = %(tenant_id)s
      and session_id = (select session_id from runs
                        where tenant_id = %(tenant_id)s and run_id = %(run_id)s and state in ('QUEUED', 'RUNNING', 'FINALIZING'))
    returning last_epoch, last_cursor
), claimed as (
    update runs set state = 'RUNNING', epoch = claim.last_epoch, first_epoch = case when epoch = 0 then claim.last_epoch else first_epoch end,
                    attempt_count = attempt_count + 1, runner_id = %(runner_id)s,
                    start_time = coalesce(start_time, now())
    from claim
    where tenant_id = %(tenant_id)s and run_id = %(run_id)s and state in ('QUEUED', 'RUNNING', 'FINALIZING')
    returning runs.*, greatest(deadline_time - clock_timestamp(), interval '0') as time_left
), leased as (
    update dispatch set due_time = now() + %(lease_ttl)s::interval, leased = true
    where tenant_id = %(tenant_id)s and kind = 'RUN' and subject_id = %(run_id)s and (select true from claimed)
), told as (
    insert into session_events (tenant_id, session_id, cursor, kind, run_id, run_state, detail)
    select c.tenant_id, c.session_id, claim.last_cursor, 'RUN', c.run_id, 'RUNNING', 'attempt ' || c.attempt_count from claimed c cross join claim
    returning pg_notify('session_changed', tenant_id || ':' || session_id)
)
select claimed.*, before.was_held from claimed cross join told cross join before

-- name: get_claimed
-- Locks nothing. The run's session, with the run and its agent. Index: runs_pkey, sessions_pkey, agents_pkey.
select s.*, to_jsonb(r) - 'tenant_id' as latest_run, to_jsonb(a) - 'tenant_id' as agent
from runs r
cross join lateral (select * from sessions where tenant_id = r.tenant_id and session_id = r.session_id offset 0) s
left join lateral (select * from agents where tenant_id = r.tenant_id and agent_id = s.agent_id offset 0) a on true
where r.tenant_id = %(tenant_id)s and r.run_id = %(run_id)s

-- name: begin_finalizing
-- A transaction of its own; says whether the tenant has secrets masked. See the function for its lock and its indexes. Index: tenants_pkey.
select (f.run).*, f.agent_id, f.waiting, f.has_begun, s.masks_secrets
from begin_finalizing(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(run_id)s, %(epoch)s, %(entry_id)s) f
left join lateral (
    select coalesce((settings -> 'transcripts' ->> 'mask_secrets')::boolean, false) as masks_secrets
    from tenants where tenant_id = (f.run).tenant_id offset 0
) s on true;

-- name: set_run_state
-- Locks the run. Only between states that are not terminal, and not while a draft is being made its answer. Index: runs_pkey.
update runs set
    state = %(state)s, draft_entry_id = '', revision_count = greatest(revision_count, %(revision_count)s),
    superseded_entry_ids = case when %(superseded_entry_id)s::text = any (superseded_entry_ids || ''::text) then superseded_entry_ids
                                else superseded_entry_ids || %(superseded_entry_id)s::text end
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s
  and (state = 'RUNNING' or state = 'FINALIZING' and final_entry_id = '')
returning *

-- name: decide_run
-- A transaction of its own. See the function for its lock and its indexes.
select (d.run).*, d.waiting
from decide_run(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(run_id)s, %(epoch)s, %(entry_id)s, %(text_key)s) d;

-- name: withdraw_decision
-- Locks the run. Index: runs_pkey.
update runs set state = 'RUNNING', draft_entry_id = '', final_entry_id = '', final_text_key = ''
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s and final_entry_id = %(entry_id)s and state in ('RUNNING', 'FINALIZING')

-- name: requeue_run
-- Locks the run. Not counted as an attempt. No row: the epoch is not the current one, or it has ended. Index: runs_pkey.
update runs set state = 'QUEUED', attempt_count = attempt_count - 1, queue_time = now()
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s and state in ('RUNNING', 'FINALIZING')
returning *

-- name: end_run
-- Locks the run and its session; lock the session before. A terminal state is set once: no row where it has one, or is not held at the epoch.
-- The run leaves the queue, and the session has its event. Runners hear of it where as many runs were held as the tenant may have at once, and
-- another one waits for that. Index: runs_pkey, sessions_pkey, dispatch_pkey, dispatch_tenant_due_idx, tenants_pkey.
with ended as (
    update runs set state = %(state)s, draft_entry_id = coalesce(nullif(%(draft_entry_id)s, ''), draft_entry_id),
                    result_text = %(result_text)s, error_reason = %(error_reason)s, error_message = %(error_message)s,
                    usage = coalesce(%(usage)s, usage), end_time = now()
    where tenant_id = %(tenant_id)s and run_id = %(run_id)s and state in ('QUEUED', 'RUNNING', 'FINALIZING')
      and (%(epoch)s::bigint is null or epoch = %(epoch)s)
    returning *
), gone as (
    delete from dispatch where tenant_id = %(tenant_id)s and kind = 'RUN' and subject_id = %(run_id)s and (select true from ended)
), next as (
    update sessions set last_cursor = last_cursor + 1 where tenant_id = %(tenant_id)s and session_id = (select session_id from ended) returning last_cursor
), told as (
    insert into session_events (tenant_id, session_id, cursor, kind, run_id, run_state, detail)
    select e.tenant_id, e.session_id, n.last_cursor, 'RUN', e.run_id, e.state, e.error_reason from ended e cross join next n
    returning pg_notify('session_changed', tenant_id || ':' || session_id),
              case when (select true from dispatch
                         where tenant_id = %(tenant_id)s and kind = 'RUN' and due_time between '-infinity' and now() and subject_id <> %(run_id)s
                         order by due_time limit 1)
                    and (select t.max_running_run_count <= (select count(*) from (
                             select from dispatch d
                             where d.tenant_id = t.tenant_id and d.kind = 'RUN' and d.leased and d.due_time >= '-infinity' and d.due_time > now()
                             limit t.max_running_run_count
                         ) running) from tenants t where t.tenant_id = %(tenant_id)s)
                   then pg_notify('run_queued', '') end
)
select ended.* from ended cross join told
