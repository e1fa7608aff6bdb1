-- name: queue_run
-- Inserts a QUEUED run with its entry in the queue, which has the runtime and the agent of its
-- session, and its event. Locks the session. Returns no row, and does nothing, if it is not ACTIVE.
-- Fails on runs_one_live_idx if the session has a live run. The run's times are those of the
-- statement, because the transaction may have waited for the lock. Uses a table of the coordinator
-- too: the entry has the deadline, the runtime and the agent that this statement reads. Index:
-- sessions_pkey.
with next as (
    update sessions set last_event_number = last_event_number + 1
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'ACTIVE'
    returning tenant_id, session_id, last_event_number, runtime, agent_id
), queued as (
    insert into runs (tenant_id, run_id, session_id, position, state, queue_time, first_queue_time,
                      deadline_time)
    select n.tenant_id, %(run_id)s, n.session_id, n.last_event_number, 'QUEUED', statement_timestamp(),
           statement_timestamp(), statement_timestamp() + %(run_timeout)s::interval
    from next n
    returning *
), placed as (
    insert into run_queue (tenant_id, run_id, due_time, expire_time, max_attempts, attempts_left, runtime,
                           agent_id)
    select q.tenant_id, q.run_id, now(), q.deadline_time, %(max_attempts)s, %(max_attempts)s, n.runtime,
           n.agent_id
    from queued q cross join next n
), recorded as (
    insert into session_events (tenant_id, session_id, number, kind, run_id, run_state)
    select q.tenant_id, q.session_id, n.last_event_number, 'RUN', q.run_id, q.state
    from queued q cross join next n
    returning number
)
select * from queued

-- name: notify_of_queued_run
-- Runners and the session's watchers are notified when the transaction commits. Nobody waits for a
-- run to be queued.
select pg_notify('run_queued' || c.suffix, %(tenant_id)s),
       pg_notify('session_changed' || c.suffix, %(tenant_id)s || ':' || %(session_id)s)
from (select suffix from _spawnmesh_channels limit 1) c

-- name: count_waiting_runs
-- Takes no lock. Runs that wait and spawns in progress. Index: run_queue_tenant_due_idx, jobs_pkey.
select (select count(*) from run_queue
        where tenant_id = %(tenant_id)s and due_time >= '-infinity' and not leased and not parked)
       + (select count(*) from jobs where tenant_id = %(tenant_id)s and kind = 'undo_spawn') as waiting

-- name: lock_queue
-- Takes the advisory lock of transactions that add to the tenant's queue near its limit.
select pg_advisory_xact_lock(hashtextextended('fill the queue of ' || %(tenant_id)s, 0))

-- name: get_run
-- Takes no lock. Index: runs_pkey.
select * from runs where tenant_id = %(tenant_id)s and run_id = %(run_id)s

-- name: lock_run
-- Locks the run until the transaction ends. Index: runs_pkey.
select * from runs where tenant_id = %(tenant_id)s and run_id = %(run_id)s for update

-- name: lock_live_run
-- Locks the session's live run, if any. Index: runs_one_live_idx.
select * from runs
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
  and state in ('QUEUED', 'RUNNING', 'FINALIZING', 'WAITING_APPROVAL', 'WAITING_BUDGET') and position >= 0
for update

-- name: read_clock
-- Takes no lock. Reads no table.
select clock_timestamp() as read_time

-- name: interrupt_run
-- From then on, no draft of the run is decided. Locks the run; the transaction has locked the
-- session and the run before it read the time, so that the order of messages and interrupts can be
-- compared. Index: runs_pkey.
update runs set interrupt_time = coalesce(interrupt_time, %(interrupt_time)s)
where tenant_id = %(tenant_id)s and run_id = %(run_id)s
returning *

-- name: notify_runner
-- The streams of the runner are notified when the transaction commits: those that serve the tenant,
-- and those that serve all.
select pg_notify('run_changed' || c.suffix, scope || ':' || %(runner_id)s)
from _spawnmesh_channels c cross join unnest(array[%(tenant_id)s, '*']) scope

-- name: lock_session_of_run
-- Locks the run's session until the transaction ends. Index: runs_pkey, sessions_pkey.
select * from sessions
where tenant_id = %(tenant_id)s and delete_time is null
  and session_id = (select session_id from runs where tenant_id = %(tenant_id)s and run_id = %(run_id)s)
for no key update

-- name: lock_parent_of_run
-- Locks the parent of the run's session until the transaction ends. The parent of a session never
-- changes. Index: runs_pkey, sessions_pkey.
select * from sessions
where tenant_id = %(tenant_id)s and delete_time is null
  and session_id = (
      select parent_session_id from sessions
      where tenant_id = %(tenant_id)s
        and session_id = (select session_id from runs where tenant_id = %(tenant_id)s and run_id = %(run_id)s)
  )
for no key update

-- name: list_killed_runs
-- Takes no lock. Killed runs that a runner held, in the order in which they were queued. Index:
-- runs_newest_idx.
select r.run_id, r.session_id, r.epoch
from unnest(%(session_ids)s::text[]) asked (session_id)
cross join lateral (
    select * from runs
    where tenant_id = %(tenant_id)s and session_id = asked.session_id
    order by position
) r
where r.state = 'KILLED' and r.epoch > 0

-- name: claim_run
-- Locks the run and its session; the transaction has locked the session before. The run gets the
-- next epoch of the session, a lease and an event; the epoch of the first claim is first_epoch.
-- was_held: the run was not QUEUED, so its last runner lost it. Returns no row, and does nothing,
-- if the run has ended, or if its entry no longer has the lease of the take: then the run may
-- belong to another claim. Locks the entry before it writes: a take or a heartbeat can change that
-- lease meanwhile, and neither locks the session. take_claimable_runs alone decides whether a claim
-- uses an attempt. attempt_count is set to the number of attempts that are used by now, so it
-- includes the take of a claimer that died. lost_epoch is set if the last runner lost the run and
-- this claim used an attempt for that. With `=` the planner would choose an index of due
-- times, and many entries can have one. Uses a table of the coordinator too: the entry is locked
-- before the run is written, and gets its epoch. Index: runs_pkey, sessions_pkey, run_queue_pkey.
with before as (
    select state <> 'QUEUED' as was_held from runs where tenant_id = %(tenant_id)s and run_id = %(run_id)s
), taken as (
    select max_attempts - attempts_left as used_attempts from run_queue
    where tenant_id = %(tenant_id)s and run_id = %(run_id)s and due_time is not distinct from %(taken_until)s
    for update
), claim as (
    update sessions set last_epoch = last_epoch + 1, last_event_number = last_event_number + 1
    where tenant_id = %(tenant_id)s
      and session_id = (select session_id from runs
                        where tenant_id = %(tenant_id)s and run_id = %(run_id)s
                          and state in ('QUEUED', 'RUNNING', 'FINALIZING'))
      and (select true from taken)
    returning last_epoch, last_event_number
), claimed as (
    update runs set state = 'RUNNING', epoch = claim.last_epoch,
                    first_epoch = case when epoch = 0 then claim.last_epoch else first_epoch end,
                    lost_epoch = case when state <> 'QUEUED' and taken.used_attempts > attempt_count
                                      then epoch else 0 end,
                    attempt_count = taken.used_attempts, runner_id = %(runner_id)s,
                    start_time = least(start_time, now()), counted_time = now()
    from claim cross join taken
    where tenant_id = %(tenant_id)s and run_id = %(run_id)s and state in ('QUEUED', 'RUNNING', 'FINALIZING')
    returning runs.*
), leased as (
    update run_queue set due_time = now() + %(lease_ttl)s::interval, leased = true,
                         epoch = (select epoch from claimed)
    where tenant_id = %(tenant_id)s and run_id = %(run_id)s
      and (select true from claimed)
), recorded as (
    insert into session_events (tenant_id, session_id, number, kind, run_id, run_state, detail)
    select c.tenant_id, c.session_id, claim.last_event_number, 'RUN', c.run_id, 'RUNNING',
           'attempt ' || c.attempt_count
    from claimed c cross join claim
    returning number
)
select claimed.*, before.was_held, greatest(deadline_time - clock_timestamp(), interval '0') as time_left
from claimed cross join before

-- name: get_claimed
-- Takes no lock. The run's session, with the run, its agent, the number of its messages and the
-- consent of its tenant to content in traces. Index: runs_pkey, sessions_pkey, agents_pkey,
-- inbox_messages_unread_idx, tenants_pkey.
select s.*,
       (select to_jsonb(r) - 'tenant_id' from runs r
        where r.tenant_id = %(tenant_id)s and r.run_id = %(run_id)s) as latest_run,
       (select to_jsonb(a) - 'tenant_id' from agents a
        where a.tenant_id = %(tenant_id)s and a.agent_id = s.agent_id) as agent,
       (select count(*) from inbox_messages i
        where i.tenant_id = %(tenant_id)s and i.session_id = s.session_id
          and i.acknowledge_time is null and i.position >= 0) as unread,
       (select coalesce((t.settings #>> '{routing,trace_content}')::boolean, false) from tenants t
        where t.tenant_id = %(tenant_id)s) as trace_content
from sessions s
where s.tenant_id = %(tenant_id)s
  and s.session_id = (select session_id from runs where tenant_id = %(tenant_id)s and run_id = %(run_id)s)

-- name: release_run
-- Locks the run. Does not count as an attempt. Returns no row if the run is not held at the epoch.
-- Index: runs_pkey.
update runs set state = 'QUEUED', attempt_count = attempt_count - 1, queue_time = now(),
                uncounted_millis = uncounted_millis
                    + greatest(extract(epoch from now() - counted_time) * 1000, 0)::bigint
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s
  and state in ('RUNNING', 'FINALIZING')
returning *

-- name: delay_run
-- As release_run, with the reason for which the run cannot go on before the pause is over. Index:
-- runs_pkey.
update runs set state = 'QUEUED', attempt_count = attempt_count - 1, queue_time = now(),
                delay_count = delay_count + 1, delay_reason = %(reason)s, delay_message = %(message)s,
                not_before_time = now() + %(pause)s::interval,
                uncounted_millis = uncounted_millis
                    + greatest(extract(epoch from now() - counted_time) * 1000, 0)::bigint
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s
  and state in ('RUNNING', 'FINALIZING')
returning *

-- name: set_counted_time
-- Locks the run. Budgets have counted its work up to then. Index: runs_pkey.
update runs set counted_time = %(now)s, uncounted_millis = 0
where tenant_id = %(tenant_id)s and run_id = %(run_id)s

-- name: give_back_attempt
-- Locks the run. The runner at the epoch was not lost, but cut off by an outage: the attempt that
-- was used for it is given back, once. Returns no row if none was used. Index: runs_pkey.
update runs set attempt_count = attempt_count - 1, lost_epoch = 0
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and lost_epoch = %(epoch)s and lost_epoch > 0
  and state in ('QUEUED', 'RUNNING', 'FINALIZING', 'WAITING_APPROVAL', 'WAITING_BUDGET')
returning attempt_count

-- name: set_reported_event_count
-- Locks the run. Index: runs_pkey.
update runs set reported_event_count = %(count)s where tenant_id = %(tenant_id)s and run_id = %(run_id)s

-- name: end_run
-- Locks the run and its session; the transaction has locked the session before. A terminal state
-- is set once: returns no row if the run has one, or is not held at the epoch. The run leaves the
-- queue, the session gets an event, and the tokens of the run are revoked if it was ever claimed.
-- Uses tables of the coordinator too: they change only if the run ends here. Index: runs_pkey,
-- sessions_pkey, run_queue_pkey, revoked_tokens_pkey.
with ended as (
    update runs set state = %(state)s,
                    draft_entry_id = coalesce(nullif(%(draft_entry_id)s, ''), draft_entry_id),
                    result_text = %(result_text)s, error_reason = %(error_reason)s,
                    error_message = %(error_message)s, usage = coalesce(%(usage)s, usage), end_time = now(),
                    approval_id = '', budget_session_id = '', wait_time = null
    where tenant_id = %(tenant_id)s and run_id = %(run_id)s
      and state in ('QUEUED', 'RUNNING', 'FINALIZING', 'WAITING_APPROVAL', 'WAITING_BUDGET')
      and (%(epoch)s::bigint is null or epoch = %(epoch)s)
    returning *
), gone as (
    delete from run_queue
    where tenant_id = %(tenant_id)s and run_id = %(run_id)s and (select true from ended)
), next as (
    update sessions set last_event_number = last_event_number + 1
    where tenant_id = %(tenant_id)s and session_id = (select session_id from ended)
    returning last_event_number
), recorded as (
    insert into session_events (tenant_id, session_id, number, kind, run_id, run_state, detail)
    select e.tenant_id, e.session_id, n.last_event_number, 'RUN', e.run_id, e.state, e.error_reason
    from ended e cross join next n
    returning number
), revoked as (
    insert into revoked_tokens as r (tenant_id, token_id, is_run, expire_time)
    select tenant_id, run_id, true, now() + %(token_ttl)s::interval from ended where epoch > 0
    on conflict (tenant_id, token_id) do update  -- A request revoked the id, maybe for a short time.
    set is_run = true, expire_time = greatest(r.expire_time, excluded.expire_time), change = excluded.change
)
select * from ended

-- name: delete_runs
-- Locks the rows. Index: runs_newest_idx, runs_pkey.
delete from runs
where tenant_id = %(tenant_id)s and run_id = any (array(
    select r.run_id from unnest(%(session_ids)s::text[]) asked (session_id)
    cross join lateral (
        select run_id from runs
        where tenant_id = %(tenant_id)s and session_id = asked.session_id
        order by position
    ) r))
