-- name: insert_message
-- Does nothing if the key is known. The time is that of the statement, as for runs, so the order of
-- messages and runs can be compared. Index: inbox_messages_pkey.
insert into inbox_messages (tenant_id, session_id, key, text, child_session_id, child_run_state, is_urgent,
                            create_time)
values (%(tenant_id)s, %(session_id)s, %(key)s, %(text)s, %(child_session_id)s, %(child_run_state)s,
        %(is_urgent)s, clock_timestamp())
on conflict do nothing
returning key

-- name: get_message_text
-- Takes no lock. Index: inbox_messages_pkey.
select text from inbox_messages
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and key = %(key)s

-- name: list_inbox
-- Takes no lock. Unread messages, oldest first: one less than %(row_count)s at most, and those
-- that fit into %(max_bytes)s, but at least one. `found_count` is larger than the number of rows if
-- others follow. Returns no row for a run that was interrupted: the messages are for the next one.
-- A snapshot with a message from behind the interrupt has the interrupt too. Index:
-- inbox_messages_unread_idx, runs_pkey.
select key, text, child_session_id, child_run_state, create_time, position, found_count
from (
    select *, sum(octet_length(text)) over (order by position) as bytes,
           row_number() over (order by position) as rank, count(*) over () as found_count
    from (select * from inbox_messages
          where tenant_id = %(tenant_id)s and session_id = %(session_id)s and acknowledge_time is null
            and position >= 0 and position > %(after_position)s
            and (select interrupt_time from runs
                 where tenant_id = %(tenant_id)s and run_id = %(run_id)s) is null
          order by position limit %(row_count)s) oldest
) counted
where rank < %(row_count)s and (bytes <= %(max_bytes)s or rank = 1)
order by position

-- name: count_inbox
-- Takes no lock. Index: inbox_messages_unread_idx.
select count(*) as unread from inbox_messages
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and acknowledge_time is null and position >= 0
  and create_time > coalesce(%(arrived_after)s::timestamptz, '-infinity')

-- name: measure_inbox
-- Takes no lock. Sent messages without children's results. Index: inbox_messages_unread_idx.
select count(*) as unread, coalesce(sum(octet_length(text)), 0) as size_bytes from inbox_messages
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and acknowledge_time is null and position >= 0
  and child_session_id = ''

-- name: acknowledge_inbox
-- Locks the messages. Index: inbox_messages_pkey.
update inbox_messages set acknowledge_time = now()
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and key = any (%(keys)s)
  and acknowledge_time is null

-- name: close_inbox
-- Marks as read the messages that no run will read. Locks them. Index: inbox_messages_unread_idx.
update inbox_messages set acknowledge_time = now()
where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s)
  and acknowledge_time is null and position >= 0

-- name: delete_messages
-- Locks the rows. Index: inbox_messages_pkey.
delete from inbox_messages where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s)

-- name: prune_messages
-- Locks the rows that it deletes: those that are read up to the time of the last one of a page, and
-- so a few more than the limit where several have that time. Index:
-- inbox_messages_acknowledged_idx.
with page as (
    select acknowledge_time from inbox_messages
    where tenant_id = %(tenant_id)s
      and acknowledge_time between '-infinity' and now() - %(older_than)s::interval
    order by acknowledge_time limit %(limit)s
)
delete from inbox_messages
where tenant_id = %(tenant_id)s
  and acknowledge_time between '-infinity' and (select max(acknowledge_time) from page)
