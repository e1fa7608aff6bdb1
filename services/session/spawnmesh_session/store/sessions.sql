-- name: read_session
-- Takes no lock. The session, unless it was deleted, with its newest run. Index: sessions_pkey,
-- runs_newest_idx.
select s.*, to_jsonb(r) - 'tenant_id' as latest_run
from sessions s
left join lateral (
    select * from runs where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    order by position desc, run_id desc limit 1
) r on true
where s.tenant_id = %(tenant_id)s and s.session_id = %(session_id)s and s.delete_time is null

-- name: lock_session
-- Locks the session until the transaction ends. As every lock of a session, it lets others write
-- rows that refer to the session. PostgreSQL checks such a reference also when a transaction
-- updates a row twice, and would wait for the lock. Index: sessions_pkey.
select * from sessions
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and delete_time is null
for no key update

-- name: lock_session_or_deleted
-- As lock_session, also for a deleted session. Index: sessions_pkey.
select * from sessions where tenant_id = %(tenant_id)s and session_id = %(session_id)s for no key update

-- name: lock_family
-- Locks the session and the descendants that exist when the statement begins, parents first.
-- Index: sessions_pkey, sessions_child_idx.
with recursive family as (
    select session_id, 0 as depth from sessions
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and delete_time is null
    union all
    select c.session_id, f.depth + 1
    from family f
    cross join lateral (
        select session_id from sessions
        where tenant_id = %(tenant_id)s and parent_session_id = f.session_id and delete_time is null
        order by session_id
    ) c
)
select session_id, state from sessions
where tenant_id = %(tenant_id)s and session_id = any (array(select f.session_id from family f))
  and delete_time is null
order by cardinality(ancestor_ids), session_id
for no key update

-- name: lock_members
-- Locks the sessions, parents first, in the order of lock_family. Index: sessions_pkey.
select session_id from sessions
where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s) and delete_time is null
order by cardinality(ancestor_ids), session_id for no key update

-- name: close_session
-- Locks the session. Returns no row, and does nothing, if it was not active. Index: sessions_pkey.
with closed as (
    update sessions set state = 'CLOSED', end_time = now(), last_event_number = last_event_number + 1
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'ACTIVE'
    returning tenant_id, session_id, last_event_number
)
insert into session_events (tenant_id, session_id, number, kind)
select tenant_id, session_id, last_event_number, 'CLOSED' from closed
returning number

-- name: reserve_epoch
-- Locks the session. Advances by two epochs, since a kill fences the run with the next one.
-- Index: sessions_pkey.
update sessions set last_epoch = last_epoch + 2
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
returning last_epoch

-- name: archive_sessions
-- Locks the sessions; skips those that are archived or have not ended. Index: sessions_pkey.
update sessions set archive_time = now()
where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s) and end_time is not null
  and archive_time is null and delete_time is null
returning session_id

-- name: delete_sessions
-- Locks the sessions; skips those that are deleted or have not ended. Removes every text of a user.
-- Index: sessions_pkey.
update sessions set delete_time = now(), label = '', model = '', task_hash = '', traceparent = '',
                    metadata = '{}', failure = null,
                    receipt = case when receipt is not null then '{}'::jsonb end
where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s) and end_time is not null
  and delete_time is null
returning session_id

-- name: find_deleted_sessions
-- Takes no lock. `may_have_files`: a set may have been staged for the session. Index:
-- sessions_pkey.
select session_id, receipt is not null or state = 'SPAWN_FAILED' as may_have_files
from sessions
where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s) and delete_time is not null

-- name: list_sessions_to_archive
-- Locks the sessions, and skips those that are locked, so it never waits for a transaction that
-- locks a family from the top. Index: sessions_unarchived_idx.
select session_id from sessions
where tenant_id = %(tenant_id)s and end_time between '-infinity' and now() - %(archive_after)s::interval
  and archive_time is null and delete_time is null
order by end_time limit %(limit)s
for no key update skip locked

-- name: list_sessions_to_delete
-- Locks the sessions, and skips those that are locked. A page after the session that ended at
-- %(after_time)s. Index: sessions_undeleted_idx.
select session_id, end_time from sessions
where tenant_id = %(tenant_id)s and end_time between '-infinity' and now() - %(delete_after)s::interval
  and delete_time is null and (end_time, session_id) > (%(after_time)s::timestamptz, %(after_id)s)
order by end_time, session_id limit %(limit)s
for no key update skip locked

-- name: list_parents
-- Takes no lock. Those of the sessions that have a child which is not deleted.
-- Index: sessions_pkey, sessions_child_idx.
select s.session_id from sessions s
where s.tenant_id = %(tenant_id)s and s.session_id = any (%(session_ids)s)
  and (select true from sessions c
       where c.tenant_id = %(tenant_id)s and c.parent_session_id = s.session_id and c.delete_time is null
       limit 1)

-- name: forget_deleted_sessions
-- Locks the oldest deleted rows, and skips those that are locked. Keeps a row while the session may
-- have files or a transcript in other services: it has a job on the coordinator, and a page of rows
-- that were read without the jobs could hold kept ones only. Index: sessions_forgotten_idx,
-- jobs_pkey, sessions_pkey.
with kept as (
    select key from jobs where tenant_id = %(tenant_id)s and kind = 'delete_session'
)
delete from sessions
where tenant_id = %(tenant_id)s and session_id = any (array(
    select session_id from sessions
    where tenant_id = %(tenant_id)s and delete_time between '-infinity' and now() - %(older_than)s::interval
      and session_id not in (select key from kept)
    order by delete_time limit %(limit)s for update skip locked))

-- name: list_live_roots
-- Takes no lock. Live sessions whose parents are not active. Index: sessions_pkey.
select session_id from sessions s
where tenant_id = %(tenant_id)s and state in ('PROVISIONING', 'ACTIVE')
  and (select p.state from sessions p
       where p.tenant_id = %(tenant_id)s and p.session_id = s.parent_session_id) is distinct from 'ACTIVE'
order by session_id limit %(limit)s
