-- name: begin_spawn
-- A transaction of its own, which inserts the session as insert_session does, where nothing stands against it. False: nothing was done. Waits for a deletion of the
-- tenant that is just beginning, and for a transaction that is inserting the request_id. See the function for its indexes.
select begin_spawn(
    set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session)s, %(run_timeout)s, %(due_in)s, %(max_queued_run_count)s, %(margin)s
) as begun;

-- name: insert_session
-- Does nothing where the request_id is known: waits for a transaction that is inserting it. The session has its first event and its time in the queue, by
-- which it is to be spawned, and is one more child of its parent, which is locked. Index: sessions_spawner_request_idx, sessions_pkey, dispatch_pkey.
with inserted as (
    insert into sessions (tenant_id, session_id, request_id, payload_hash, state, agent_id, label, model, mode, context, cleanup, runtime,
                          parent_session_id, parent_run_id, ancestor_ids, run_timeout, task_hash, traceparent, thinking, last_cursor)
    values (%(tenant_id)s, %(session_id)s, %(request_id)s, %(payload_hash)s, 'PROVISIONING', %(agent_id)s, %(label)s, %(model)s, %(mode)s,
            %(context)s, %(cleanup)s, %(runtime)s, %(parent_session_id)s, %(parent_run_id)s, %(ancestor_ids)s, %(run_timeout)s, %(task_hash)s,
            %(traceparent)s, %(thinking)s, 1)
    on conflict do nothing
    returning tenant_id, session_id, last_cursor
), counted as (
    update sessions set spawn_count = spawn_count + 1
    where tenant_id = %(tenant_id)s and session_id = %(parent_session_id)s and (select true from inserted)
), due as (
    insert into dispatch (tenant_id, kind, subject_id, due_time)
    select i.tenant_id, 'SPAWN', i.session_id, now() + %(due_in)s::interval from inserted i
    on conflict (tenant_id, kind, subject_id) do update set due_time = excluded.due_time
)
insert into session_events (tenant_id, session_id, cursor, kind)
select i.tenant_id, i.session_id, i.last_cursor, 'PROVISIONING' from inserted i
returning session_id

-- name: find_spawn
-- Locks nothing. Finds deleted ones too. A spawner is the session whose run spawns; empty for clients. Index: sessions_spawner_request_idx.
select session_id, state, payload_hash, failure, delete_time is not null as deleted from sessions
where tenant_id = (select %(tenant_id)s) and request_id = %(request_id)s
  and case when parent_run_id = '' then '' else parent_session_id end = %(spawner)s

-- name: get_session
-- Locks nothing. See the function for its indexes.
select (f.session).*, f.latest_run from find_session(%(tenant_id)s, %(session_id)s) f

-- name: look_at_session
-- As get_session, in a transaction of its own.
select (f.session).*, f.latest_run from find_session(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s) f;

-- name: list_newest
-- Locks nothing. Index: sessions_pkey backwards.
select session_id from sessions
where tenant_id = %(tenant_id)s and delete_time is null and (archive_time is null or %(include_archived)s)
  and (%(before_id)s = '' or session_id < %(before_id)s)
order by session_id desc
limit %(page_size)s

-- name: list_children
-- Locks nothing. Index: sessions_child_idx backwards.
select session_id from sessions
where tenant_id = (select %(tenant_id)s) and parent_session_id = %(parent_session_id)s
  and delete_time is null and (archive_time is null or %(include_archived)s)
  and (%(visible_to)s = '' or session_id = %(visible_to)s or %(visible_to)s = any (ancestor_ids))
  and (%(before_id)s = '' or session_id < %(before_id)s)
order by session_id desc
limit %(page_size)s

-- name: list_descendants
-- Locks nothing. The session and what descends from it, from parent to child: it costs what the family has. Index: sessions_pkey, sessions_child_idx.
with recursive family as (
    select session_id, archive_time, delete_time from sessions where tenant_id = %(tenant_id)s and session_id = %(visible_to)s
    union all
    select s.session_id, s.archive_time, s.delete_time
    from family f
    cross join lateral (select * from sessions where tenant_id = (select %(tenant_id)s) and parent_session_id = f.session_id offset 0) s
)
select session_id from family
where delete_time is null and (archive_time is null or %(include_archived)s) and (%(before_id)s = '' or session_id < %(before_id)s)
order by session_id desc
limit %(page_size)s

-- name: read_sessions
-- Locks nothing. As many of these, newest first, as fit into %(max_bytes)s, and one in any case; what is not measured of one takes a KiB at most.
-- Index: sessions_pkey, runs_newest_idx.
with page as (
    select * from sessions s where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s) and delete_time is null
), measured as (
    select p as session, to_jsonb(r) - 'tenant_id' as latest_run, row_number() over newest as place,
           sum(1024 + coalesce(octet_length(r.result_text) + octet_length(r.error_message), 0) + coalesce(octet_length(p.receipt::text), 0)) over newest as bytes
    from page p
    left join lateral (select * from runs
                       where tenant_id = p.tenant_id and session_id = p.session_id order by position desc, run_id desc limit 1) r on true
    window newest as (order by p.session_id desc)
)
select (session).*, latest_run
from measured
where bytes <= %(max_bytes)s or place = 1
order by place

-- name: lock_session
-- Locks the session until the transaction ends. Index: sessions_pkey.
select * from sessions where tenant_id = %(tenant_id)s and session_id = %(session_id)s and delete_time is null for update

-- name: count_live_children
-- Locks nothing; exact while the parent is locked. Index: sessions_child_idx.
select count(*) as live from sessions
where tenant_id = (select %(tenant_id)s) and parent_session_id = %(session_id)s and state in ('PROVISIONING', 'ACTIVE')

-- name: count_waiting
-- Locks nothing. Runs that wait and spawns under way. Index: dispatch_tenant_due_idx.
select count(*) as waiting from dispatch
where tenant_id = %(tenant_id)s and kind in ('RUN', 'SPAWN') and due_time >= '-infinity' and not leased

-- name: lock_queue
-- Makes whoever else fills the tenant's queue wait until the transaction ends.
select pg_advisory_xact_lock(hashtextextended('fill the queue of ' || %(tenant_id)s, 0))

-- name: pass_gate
-- A transaction of its own. Locks the session. False: it is no longer being spawned. See the function for its index.
select pass_gate(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s) as passed;

-- name: enrol_session
-- A transaction of its own. Locks the session. No row: it is no longer being spawned. See the function for its indexes.
select (f.session).*, f.latest_run from enrol_session(
    set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(receipt)s, %(run_id)s, %(run_timeout)s, %(attempts_left)s, %(jobs)s
) f;

-- name: fail_spawn
-- Locks the session. No row: it is no longer being spawned. Index: sessions_pkey.
update sessions set state = 'SPAWN_FAILED', failure = %(failure)s, end_time = now()
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'PROVISIONING'
returning gate_passed, parent_session_id, traceparent

-- name: close_session
-- Locks the session, which has its event. No row: it was not active. Index: sessions_pkey.
with closed as (
    update sessions set state = 'CLOSED', end_time = now(), last_cursor = last_cursor + 1
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'ACTIVE'
    returning tenant_id, session_id, last_cursor
)
insert into session_events (tenant_id, session_id, cursor, kind)
select tenant_id, session_id, last_cursor, 'CLOSED' from closed
returning session_id, pg_notify('session_changed', tenant_id || ':' || session_id)

-- name: reserve_epoch
-- Locks the session. Two epochs further, since whoever kills a run fences it with the next one. Index: sessions_pkey.
update sessions set last_epoch = last_epoch + 2 where tenant_id = %(tenant_id)s and session_id = %(session_id)s returning last_epoch

-- name: lock_family
-- Locks the session and those descendants that were there when the statement began, parents first. Index: sessions_pkey, sessions_child_idx.
with recursive family as (
    select session_id, cardinality(ancestor_ids) as depth
    from sessions where tenant_id = (select %(tenant_id)s) and session_id = %(session_id)s and delete_time is null
    union
    select s.session_id, cardinality(s.ancestor_ids)
    from family f
    cross join lateral (select * from sessions where tenant_id = (select %(tenant_id)s) and parent_session_id = f.session_id offset 0) s
    where s.delete_time is null
)
select s.session_id, s.state, s.archive_time
from (select session_id from family order by depth, session_id) f
cross join lateral (
    select session_id, state, archive_time from sessions where tenant_id = %(tenant_id)s and session_id = f.session_id for update
) s

-- name: append_event
-- Locks the session. Whoever watches it hears when the transaction commits. Index: sessions_pkey.
with next as (
    update sessions set last_cursor = last_cursor + 1 where tenant_id = %(tenant_id)s and session_id = %(session_id)s returning last_cursor
)
insert into session_events (tenant_id, session_id, cursor, kind, run_id, run_state, child_session_id, detail)
select %(tenant_id)s, %(session_id)s, last_cursor, %(kind)s, %(run_id)s, %(run_state)s, %(child_session_id)s, %(detail)s from next
returning pg_notify('session_changed', tenant_id || ':' || session_id)

-- name: list_events
-- Locks nothing. Index: session_events_pkey.
select cursor, event_time, kind, run_id, run_state, child_session_id, detail from session_events
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and cursor > %(after_cursor)s
order by cursor limit 500
