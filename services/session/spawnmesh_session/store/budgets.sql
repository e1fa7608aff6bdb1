-- name: insert_budget
-- Inserts the budget of a session that this transaction has inserted; nothing if it inserted none.
-- Index: sessions_pkey, budgets_pkey.
insert into budgets (tenant_id, session_id, max_token_count, max_cost_micros, max_model_call_count,
                     max_run_time, max_wait)
select s.tenant_id, s.session_id, %(max_token_count)s::bigint, %(max_cost_micros)s::bigint,
       %(max_model_call_count)s::bigint, %(max_run_time)s::interval, %(max_wait)s::interval
from sessions s
where s.tenant_id = %(tenant_id)s and s.session_id = %(session_id)s

-- name: list_budgets
-- Takes no lock. Index: budgets_pkey.
select * from budgets where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s::text[])

-- name: lock_budgets
-- Locks the budgets in the order of their sessions; the transaction has locked the run before, and
-- the session, if it locks it at all. Index: budgets_pkey.
select * from budgets
where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s::text[])
order by session_id
for update

-- name: add_use
-- The transaction has locked the budgets. Nothing falls below 0. Index: budgets_pkey.
update budgets set used_token_count = greatest(used_token_count + %(token_count)s, 0),
                   used_cost_micros = greatest(used_cost_micros + %(cost_micros)s, 0),
                   used_model_call_count = used_model_call_count + %(model_call_count)s,
                   used_run_time = used_run_time + %(run_time)s
where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s::text[])

-- name: change_limits
-- The transaction has locked the budget, and has read the time before. Index: budgets_pkey.
update budgets set max_token_count = %(max_token_count)s, max_cost_micros = %(max_cost_micros)s,
                   max_model_call_count = %(max_model_call_count)s, max_run_time = %(max_run_time)s,
                   max_wait = %(max_wait)s, version = version + 1, update_time = %(now)s,
                   updated_by = %(updated_by)s
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
returning *

-- name: delete_budgets
-- Locks the rows. Index: budgets_pkey.
delete from budgets where tenant_id = %(tenant_id)s and session_id = any (%(session_ids)s::text[])

-- name: find_model_call
-- Takes no lock. Index: model_calls_pkey.
select * from model_calls where tenant_id = %(tenant_id)s and call_id = %(call_id)s

-- name: insert_model_call
-- The transaction has locked the run. Index: model_calls_pkey.
insert into model_calls (tenant_id, call_id, session_id, run_id, largest_token_count, largest_cost_micros,
                         create_time)
values (%(tenant_id)s, %(call_id)s, %(session_id)s, %(run_id)s, %(largest_token_count)s,
        %(largest_cost_micros)s, %(now)s)

-- name: count_earlier_calls
-- Locks the calls of the locked run that are not reported, and marks them as counted. Returns those
-- that were not counted before. Index: model_calls_run_idx, model_calls_pkey.
update model_calls set is_counted = true
where tenant_id = %(tenant_id)s and not is_counted and call_id = any (array(
    select call_id from model_calls
    where tenant_id = %(tenant_id)s and run_id = %(run_id)s
    order by call_id
))
returning *

-- name: take_model_call
-- Locks and deletes the call; the transaction has locked its run before, if there is one. Index:
-- model_calls_pkey.
delete from model_calls where tenant_id = %(tenant_id)s and call_id = %(call_id)s
returning *

-- name: delete_model_calls
-- Locks the rows. Index: model_calls_session_idx, model_calls_pkey.
delete from model_calls
where tenant_id = %(tenant_id)s and call_id = any (array(
    select c.call_id from unnest(%(session_ids)s::text[]) asked (session_id)
    cross join lateral (
        select call_id from model_calls
        where tenant_id = %(tenant_id)s and session_id = asked.session_id
        order by call_id
    ) c))
returning call_id

-- name: list_children_of
-- Takes no lock. At most %(limit)s children of these sessions. Index: sessions_child_idx.
select c.session_id from unnest(%(session_ids)s::text[]) asked (session_id)
cross join lateral (
    select session_id from sessions
    where tenant_id = %(tenant_id)s and parent_session_id = asked.session_id and delete_time is null
    order by session_id
) c
limit (select %(limit)s::bigint)

-- name: sum_usage
-- Takes no lock. The usage of the ended runs of these sessions. Index: runs_newest_idx.
select count(*) as ended_run_count,
       coalesce(sum((r.usage ->> 'input_token_count')::bigint), 0)::bigint as input_token_count,
       coalesce(sum((r.usage ->> 'output_token_count')::bigint), 0)::bigint as output_token_count,
       coalesce(sum((r.usage ->> 'cache_read_token_count')::bigint), 0)::bigint as cache_read_token_count,
       coalesce(sum((r.usage ->> 'cache_write_token_count')::bigint), 0)::bigint as cache_write_token_count,
       coalesce(sum((r.usage ->> 'cost_micros')::bigint), 0)::bigint as cost_micros,
       coalesce((array_agg(r.usage ->> 'price_version' order by r.end_time desc)
                 filter (where r.usage ->> 'price_version' > ''))[1], '') as price_version
from unnest(%(session_ids)s::text[]) asked (session_id)
cross join lateral (
    select usage, end_time from runs
    where tenant_id = %(tenant_id)s and session_id = asked.session_id and end_time is not null
    order by position
) r
