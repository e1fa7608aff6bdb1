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
-- The transaction has locked the budgets. Nothing falls below 0, or exceeds what a bigint holds.
-- Index: budgets_pkey.
update budgets set used_token_count = least(greatest(used_token_count::numeric + %(token_count)s, 0),
                                            9000000000000000000)::bigint,
                   used_cost_micros = least(greatest(used_cost_micros::numeric + %(cost_micros)s, 0),
                                            9000000000000000000)::bigint,
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
                         budget_session_ids, root_session_id, create_time)
values (%(tenant_id)s, %(call_id)s, %(session_id)s, %(run_id)s, %(largest_token_count)s,
        %(largest_cost_micros)s, %(budget_session_ids)s, %(root_session_id)s, %(now)s)

-- name: lock_family_calls
-- Locks the calls that nothing reported or counted, by their ids: those of the run, which is
-- locked, and those of runs of the family that no runner holds. Index: model_calls_open_idx,
-- runs_pkey.
select c.* from model_calls c
where c.tenant_id = %(tenant_id)s and c.root_session_id = %(root_session_id)s
  and not c.is_counted and not c.is_reported
  and (c.run_id = %(run_id)s
       or (select true from runs r
           where r.tenant_id = %(tenant_id)s and r.run_id = c.run_id
             and r.state in ('RUNNING', 'FINALIZING')) is null)
order by c.call_id
for update of c

-- name: set_counted
-- The transaction has locked the calls. Index: model_calls_pkey.
update model_calls set is_counted = true
where tenant_id = %(tenant_id)s and call_id = any (%(call_ids)s::text[])

-- name: report_model_call
-- Locks the call; the transaction has locked its run before, if there is one. Returns the call as
-- it was before, and no row if it was reported. Index: model_calls_pkey.
update model_calls set is_reported = true
where tenant_id = %(tenant_id)s and call_id = %(call_id)s and not is_reported
returning *

-- name: delete_model_call
-- Locks and deletes the call. Index: model_calls_pkey.
delete from model_calls where tenant_id = %(tenant_id)s and call_id = %(call_id)s
returning *

-- name: delete_model_calls
-- Locks the rows. The calls of families whose outermost budget is deleted. Index:
-- model_calls_root_idx, model_calls_pkey.
delete from model_calls
where tenant_id = %(tenant_id)s and call_id = any (array(
    select c.call_id from unnest(%(session_ids)s::text[]) asked (session_id)
    cross join lateral (
        select call_id from model_calls
        where tenant_id = %(tenant_id)s and root_session_id = asked.session_id
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
       least(coalesce(sum((r.usage ->> 'input_token_count')::numeric), 0), %(largest)s)::bigint
           as input_token_count,
       least(coalesce(sum((r.usage ->> 'output_token_count')::numeric), 0), %(largest)s)::bigint
           as output_token_count,
       least(coalesce(sum((r.usage ->> 'cache_read_token_count')::numeric), 0), %(largest)s)::bigint
           as cache_read_token_count,
       least(coalesce(sum((r.usage ->> 'cache_write_token_count')::numeric), 0), %(largest)s)::bigint
           as cache_write_token_count,
       least(coalesce(sum((r.usage ->> 'cost_micros')::numeric), 0), %(largest)s)::bigint
           as cost_micros,
       coalesce((array_agg(r.usage ->> 'price_version' order by r.end_time desc)
                 filter (where r.usage ->> 'price_version' > ''))[1], '') as price_version
from unnest(%(session_ids)s::text[]) asked (session_id)
cross join lateral (
    select usage, end_time from runs
    where tenant_id = %(tenant_id)s and session_id = asked.session_id and end_time is not null
    order by position
) r
