-- name: insert_inbox_message
-- Does nothing where the key is known. Its time is that of the statement, as a run's is: so it tells which came first. Index: inbox_messages_pkey.
insert into inbox_messages (tenant_id, session_id, key, text, child_session_id, child_run_state, create_time)
values (%(tenant_id)s, %(session_id)s, %(key)s, %(text)s, %(child_session_id)s, %(child_run_state)s, clock_timestamp())
on conflict do nothing
returning key

-- name: get_inbox_text
-- Locks nothing. Index: inbox_messages_pkey.
select text from inbox_messages where tenant_id = %(tenant_id)s and session_id = %(session_id)s and key = %(key)s

-- name: list_inbox
-- Locks nothing. As many as fit into %(max_bytes)s, and one in any case. Index: inbox_messages_unread_idx.
select key, text, child_session_id, child_run_state, create_time
from (
    select *, sum(octet_length(text)) over (order by position) as bytes, row_number() over (order by position) as place
    from (select * from inbox_messages
          where tenant_id = %(tenant_id)s and session_id = %(session_id)s and acknowledge_time is null and position >= 0
          order by position limit 100) oldest
) counted
where bytes <= %(max_bytes)s or place = 1
order by position

-- name: count_inbox
-- Locks nothing. Index: inbox_messages_unread_idx.
select count(*) as waiting from inbox_messages
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and acknowledge_time is null and position >= 0
  and create_time > coalesce(%(arrived_after)s::timestamptz, '-infinity')

-- name: count_inbox_of_run
-- Locks nothing. Index: runs_pkey, sessions_pkey, inbox_messages_unread_idx.
select
    s.agent_id,
    (
        select count(*) from inbox_messages m
        where m.tenant_id = s.tenant_id and m.session_id = s.session_id and m.acknowledge_time is null and m.position >= 0
    ) as waiting
from sessions s
where s.tenant_id = %(tenant_id)s and s.session_id = (select r.session_id from runs r where r.tenant_id = %(tenant_id)s and r.run_id = %(run_id)s)

-- name: acknowledge_inbox
-- Locks the messages. Index: inbox_messages_pkey.
update inbox_messages set acknowledge_time = now()
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and key = any (%(keys)s) and acknowledge_time is null
