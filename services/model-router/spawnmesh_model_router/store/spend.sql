-- name: list_agents
-- The agents that have rows of their own on these days, at most a few hundred for each day. Index:
-- spend_days_pkey.
select distinct day, agent_id from spend_days
where tenant_id = %(tenant_id)s and day = any(%(days)s::date[]) and agent_id not in ('', '*');

-- name: add_spend
-- Locks the rows that it adds to, in the order of their key. No transaction of a model call locks
-- them. Adds nothing for a purged tenant. Index: spend_days_pkey.
insert into spend_days as s (
    tenant_id, day, agent_id, model, call_count, input_token_count, output_token_count,
    cache_read_token_count, cache_write_token_count, cost_micros
)
select %(tenant_id)s, given.*
from unnest(
    %(days)s::date[], %(agent_ids)s::text[], %(models)s::text[], %(call_counts)s::bigint[],
    %(input)s::bigint[], %(output)s::bigint[], %(cache_read)s::bigint[], %(cache_write)s::bigint[],
    %(cost_micros)s::bigint[]
) as given (day, agent_id, model, call_count, input, output, cache_read, cache_write, cost_micros)
where not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
order by given.day, given.agent_id, given.model
on conflict (tenant_id, day, agent_id, model) do update
set call_count = s.call_count + excluded.call_count,
    input_token_count = s.input_token_count + excluded.input_token_count,
    output_token_count = s.output_token_count + excluded.output_token_count,
    cache_read_token_count = s.cache_read_token_count + excluded.cache_read_token_count,
    cache_write_token_count = s.cache_write_token_count + excluded.cache_write_token_count,
    cost_micros = s.cost_micros + excluded.cost_micros;

-- name: delete_past_days
-- Locks the rows that it deletes. Index: spend_days_pkey.
delete from spend_days where tenant_id = %(tenant_id)s and day < %(first_kept)s::date;

-- name: list_spend
-- Takes no lock. Sums over the dimensions that are not wanted, which are empty. Reads all rows of
-- the span: at most a few hundred for each day and model. Index: spend_days_pkey.
with grouped as (
    select case when %(by_day)s then day else %(first)s::date end as day,
           case when %(by_agent)s then agent_id else '' end as agent_id,
           case when %(by_model)s then model else '' end as model,
           call_count, input_token_count, output_token_count, cache_read_token_count,
           cache_write_token_count, cost_micros
    from spend_days
    where tenant_id = %(tenant_id)s and day between %(first)s::date and %(last)s::date
)
select day, agent_id, model,
       sum(call_count)::bigint as call_count,
       sum(input_token_count)::bigint as input,
       sum(output_token_count)::bigint as output,
       sum(cache_read_token_count)::bigint as cache_read,
       sum(cache_write_token_count)::bigint as cache_write,
       sum(cost_micros)::bigint as cost_micros
from grouped
where (day, agent_id, model) > (%(after_day)s::date, %(after_agent)s::text, %(after_model)s::text)
   or %(is_first)s
group by day, agent_id, model
order by day, agent_id, model
limit %(limit)s;

-- name: get_day_spending
-- Takes no lock. Index: tenant_policies_pkey and budget_periods_pkey. Returns no row for a tenant
-- that is not prepared.
select p.spend_micros_per_day as limit_micros,
       coalesce(b.spend_micros, 0) as spent_micros,
       coalesce(b.reserved_micros, 0) as reserved_micros,
       date_trunc('day', now(), 'UTC') + interval '1 day' as renew_time
from tenant_policies p
left join budget_periods b
       on b.tenant_id = %(tenant_id)s and b.period = 'DAY'
      and b.begin_time = date_trunc('day', now(), 'UTC')
where p.tenant_id = %(tenant_id)s;
