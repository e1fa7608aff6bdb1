-- name: archive_sessions
-- Locks the sessions; leaves out those that are archived or have not ended. Index: sessions_pkey.
update sessions set archive_time = now()
where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s) and end_time is not null and archive_time is null and delete_time is null
returning session_id

-- name: close_inbox
-- Locks the messages: nobody will read those that wait. Index: inbox_messages_unread_idx.
update inbox_messages set acknowledge_time = now()
where tenant_id = (select %(tenant_id)s) and session_id = any (%(session_ids)s) and acknowledge_time is null and position >= 0

-- name: delete_sessions
-- Locks the sessions; leaves out those that are deleted or have not ended. What anybody wrote goes at once. Index: sessions_pkey.
update sessions set delete_time = now(), label = '', model = '', task_hash = '', traceparent = '', failure = null,
                    receipt = case when receipt is not null then '{}'::jsonb end
where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s) and end_time is not null and delete_time is null
returning session_id

-- name: delete_runs
-- Locks the rows; see the function. Index: runs_newest_idx.
select delete_runs(%(tenant_id)s, %(session_ids)s::text[])

-- name: delete_messages
-- Locks the rows. Index: inbox_messages_pkey.
delete from inbox_messages where tenant_id = (select %(tenant_id)s) and session_id = any (%(session_ids)s)

-- name: delete_events
-- Locks the rows. Index: session_events_pkey.
delete from session_events where tenant_id = (select %(tenant_id)s) and session_id = any (%(session_ids)s)

-- name: find_deleted
-- Locks nothing. `may_have_files`: a set may have been staged for it. Index: sessions_pkey.
select session_id, receipt is not null or state = 'SPAWN_FAILED' as may_have_files
from sessions where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s) and delete_time is not null

-- name: lock_even_deleted
-- Locks the session until the transaction ends. Index: sessions_pkey.
select * from sessions where tenant_id = %(tenant_id)s and session_id = %(session_id)s for update

-- name: list_to_archive
-- Locks the sessions, and leaves out those that are locked: so it never waits for whoever locks families from the top. 
-- Index: sessions_unarchived_idx.
select session_id from sessions
where tenant_id = %(tenant_id)s and end_time between '-infinity' and now() - %(archive_after)s::interval and archive_time is null and delete_time is null
order by end_time limit %(limit)s
for update skip locked

-- name: lock_members
-- Locks the sessions, parents first, as whoever locks families does. Index: sessions_pkey.
select session_id from sessions
where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s) and delete_time is null
order by cardinality(ancestor_ids), session_id for update

-- name: list_to_delete
-- Locks the sessions, and leaves out those that are locked. A page behind the session that ended at %(after_time)s. Index: sessions_undeleted_idx.
select session_id, end_time from sessions
where tenant_id = %(tenant_id)s and end_time between '-infinity' and now() - %(delete_after)s::interval and delete_time is null
  and (end_time, session_id) > (%(after_time)s::timestamptz, %(after_id)s)
order by end_time, session_id limit %(limit)s
for update skip locked

-- name: list_parents
-- Locks nothing. Which of these have children that are not deleted. Index: sessions_child_idx.
select asked.session_id as parent_session_id
from unnest(%(session_ids)s::text[]) asked (session_id)
cross join lateral (
    select from (
        select delete_time from sessions where tenant_id = (select %(tenant_id)s) and parent_session_id = asked.session_id offset 0
    ) children
    where delete_time is null
    limit 1
) child

-- name: prune_events
-- Locks the rows, and leaves out those that are locked; see the function. Index: session_events_prune_idx.
select prune_events(%(tenant_id)s, %(older_than)s, %(limit)s) as row_count

-- name: prune_messages
-- Locks the rows, and leaves out those that are locked; see the function. Index: inbox_messages_acknowledged_idx.
select prune_messages(%(tenant_id)s, %(older_than)s, %(limit)s) as row_count

-- name: forget_deleted
-- Locks the rows, and leaves out those that are locked, those whose files or transcript may be there still, and those whose request_id is to be remembered;
-- see the function. Index: sessions_forgotten_idx, dispatch_pkey.
select forget_deleted(%(tenant_id)s, %(older_than)s, %(limit)s) as row_count
