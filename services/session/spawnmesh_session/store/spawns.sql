-- name: begin_spawn
-- Inserts a session without a parent as PROVISIONING, with its first event and the job that undoes
-- it at its deadline, if nothing can refuse the spawn:
--   - the tenant is complete and not being deleted, and the transaction has joined its beginners;
--   - the agent exists;
--   - the tenant's queue has at least %(margin)s free places;
--   - the request_id is new. Waits for a transaction that is inserting the same request_id.
-- Returns no row, and does nothing, if one of these does not hold. Uses tables of the coordinator
-- too: written in parts, a spawn would wait for each part. Index: tenants_pkey,
-- tenant_deletions_pkey, agents_pkey, run_queue_tenant_due_idx, jobs_pkey,
-- sessions_spawner_request_idx, sessions_pkey.
with inserted as (
    insert into sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id, agent_version,
                          label, model, mode, context, cleanup, runtime, parent_session_id, parent_run_id,
                          ancestor_ids, run_timeout, task_hash, traceparent, thinking, metadata,
                          last_event_number)
    select a.tenant_id, %(session_id)s, %(request_id)s, %(payload_hash)s::bytea, 'PROVISIONING',
           a.agent_id, a.version, %(label)s, %(model)s, %(mode)s, %(context)s, %(cleanup)s, %(runtime)s,
           '', '', '{}', %(run_timeout)s::interval, %(task_hash)s, %(traceparent)s, %(thinking)s,
           %(metadata)s::jsonb, 1
    from agents a
    where a.tenant_id = %(tenant_id)s and a.agent_id = %(agent_id)s
      and (select true from tenant_deletions where tenant_id = %(tenant_id)s) is null
      and (select max_queued_run_count - %(margin)s from tenants where tenant_id = %(tenant_id)s and ready)
          >= (select count(*) from (
              select true from run_queue
              where tenant_id = %(tenant_id)s and due_time >= '-infinity' and not leased
              union all
              select true from jobs where tenant_id = %(tenant_id)s and kind = 'undo_spawn'
              limit (select greatest(max_queued_run_count - %(margin)s + 1, 0) from tenants
                     where tenant_id = %(tenant_id)s)
          ) waiting)
    on conflict do nothing
    returning session_id, last_event_number
), due as (
    insert into jobs (tenant_id, kind, key, due_time, traceparent)
    select %(tenant_id)s, 'undo_spawn', i.session_id, now() + %(due_in)s::interval, %(traceparent)s
    from inserted i
    on conflict (tenant_id, kind, key) do update set due_time = excluded.due_time
)
insert into session_events (tenant_id, session_id, number, kind)
select %(tenant_id)s, i.session_id, i.last_event_number, 'PROVISIONING' from inserted i
returning session_id

-- name: insert_session
-- Inserts the session with its first event and the job that undoes it at its deadline, and adds one
-- to the children of its parent, which is locked, with an event there. Does nothing if the
-- request_id is known; waits for a transaction that is inserting it. Uses a table of the
-- coordinator too: no job is added for a known request_id. Index: sessions_spawner_request_idx,
-- sessions_pkey, jobs_pkey.
with inserted as (
    insert into sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id, agent_version,
                          label, model, mode, context, cleanup, runtime, parent_session_id, parent_run_id,
                          ancestor_ids, run_timeout, task_hash, traceparent, thinking, metadata,
                          fork_session_id, fork_seq, budget_session_ids, last_event_number)
    values (%(tenant_id)s, %(session_id)s, %(request_id)s, %(payload_hash)s, 'PROVISIONING', %(agent_id)s,
            %(agent_version)s, %(label)s, %(model)s, %(mode)s, %(context)s, %(cleanup)s, %(runtime)s,
            %(parent_session_id)s, %(parent_run_id)s, %(ancestor_ids)s, %(run_timeout)s,
            %(task_hash)s, %(traceparent)s, %(thinking)s, %(metadata)s::jsonb,
            case when %(fork_seq)s > 0 then %(fork_source)s else '' end, %(fork_seq)s,
            %(budget_session_ids)s, 1)
    on conflict do nothing
    returning tenant_id, session_id, last_event_number
), counted as (
    update sessions set spawn_count = spawn_count + 1, last_event_number = last_event_number + 1
    where tenant_id = %(tenant_id)s and session_id = %(parent_session_id)s and (select true from inserted)
    returning tenant_id, session_id, last_event_number
), announced as (
    insert into session_events (tenant_id, session_id, number, kind, run_id, child_session_id, detail)
    select c.tenant_id, c.session_id, c.last_event_number, 'CHILD_SPAWNED', %(parent_run_id)s,
           %(session_id)s, %(agent_id)s
    from counted c
    returning session_id
), due as (
    insert into jobs (tenant_id, kind, key, due_time, traceparent)
    select i.tenant_id, 'undo_spawn', i.session_id, now() + %(due_in)s::interval, %(traceparent)s
    from inserted i
    on conflict (tenant_id, kind, key) do update set due_time = excluded.due_time
)
insert into session_events (tenant_id, session_id, number, kind)
select i.tenant_id, i.session_id, i.last_event_number, 'PROVISIONING' from inserted i
returning session_id

-- name: find_spawn
-- Takes no lock. Finds deleted sessions too. The spawner is the session whose run spawns; empty
-- for a client. Index: sessions_spawner_request_idx.
select session_id, state, payload_hash, failure, delete_time is not null as deleted from sessions
where tenant_id = %(tenant_id)s and request_id = %(request_id)s
  and case when parent_run_id = '' then '' else parent_session_id end = %(spawner)s

-- name: get_spawn
-- Takes no lock. Finds deleted sessions too. Index: sessions_pkey.
select session_id, state, payload_hash, failure, delete_time is not null as deleted from sessions
where tenant_id = %(tenant_id)s and session_id = %(session_id)s

-- name: get_agent_of_spawn
-- Takes no lock. Index: agents_pkey.
select * from agents where tenant_id = %(tenant_id)s and agent_id = %(agent_id)s

-- name: lock_parent_of_spawn
-- Locks the parent until the transaction ends. Index: sessions_pkey.
select * from sessions
where tenant_id = %(tenant_id)s and session_id = %(parent_session_id)s and delete_time is null
for no key update

-- name: get_agent_of_parent
-- Takes no lock. Index: agents_pkey, sessions_pkey.
select * from agents
where tenant_id = %(tenant_id)s
  and agent_id = (select s.agent_id from sessions s
                  where s.tenant_id = %(tenant_id)s and s.session_id = %(parent_session_id)s)

-- name: find_fork_source
-- Takes no lock. Finds what the spawner can read: a client every session, a run its own and its
-- descendants. Index: sessions_pkey.
select session_id from sessions
where tenant_id = %(tenant_id)s and session_id = %(fork_source)s and delete_time is null
  and state in ('ACTIVE', 'CLOSED')
  and (%(spawner)s = '' or session_id = %(spawner)s or %(spawner)s = any (ancestor_ids))

-- name: count_live_children
-- Takes no lock; exact while the parent is locked. Index: sessions_child_idx.
select count(*) as live from sessions
where tenant_id = %(tenant_id)s and parent_session_id = %(parent_session_id)s
  and state in ('PROVISIONING', 'ACTIVE')

-- name: get_run_of_parent
-- Takes no lock. Index: runs_pkey.
select * from runs where tenant_id = %(tenant_id)s and run_id = %(parent_run_id)s

-- name: pass_gate
-- Locks the session. Returns no row if the session is no longer PROVISIONING. Index: sessions_pkey.
update sessions set gate_passed = true
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'PROVISIONING'
returning session_id

-- name: activate_session
-- PROVISIONING -> ACTIVE, and the job that would undo the spawn is deleted. Locks the session.
-- Returns no row, and does nothing, if the session is no longer PROVISIONING. Uses a table of the
-- coordinator too: the job of a session that is not activated stays. Index: sessions_pkey,
-- jobs_pkey.
with activated as (
    update sessions set state = 'ACTIVE', receipt = %(receipt)s
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'PROVISIONING'
    returning *
), gone as (
    delete from jobs
    where tenant_id = %(tenant_id)s and kind = 'undo_spawn' and key = %(session_id)s
      and (select true from activated)
)
select * from activated

-- name: enqueue_jobs_of_run
-- Enqueues the jobs as enqueue_jobs of the job library does, if the run was queued. Index:
-- run_queue_pkey, jobs_pkey.
with added as (
    insert into jobs (tenant_id, kind, key, arguments, traceparent)
    select %(tenant_id)s, j.kind, j.key, j.arguments, j.traceparent
    from jsonb_to_recordset(%(jobs)s::jsonb) as j (kind text, key text, arguments jsonb, traceparent text)
    where (select true from run_queue where tenant_id = %(tenant_id)s and run_id = %(run_id)s)
    on conflict (tenant_id, kind, key) do nothing
    returning kind
)
select pg_notify('jobs' || (select suffix from _spawnmesh_channels), kind) from added

-- name: fail_spawn
-- Changes nothing if the session is no longer PROVISIONING. Locks the session. A failure that is
-- not final gives the request_id back. Index: sessions_pkey.
update sessions set state = 'SPAWN_FAILED', failure = %(failure)s, end_time = now(),
                    request_id = case when %(is_final)s then request_id end
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'PROVISIONING'
