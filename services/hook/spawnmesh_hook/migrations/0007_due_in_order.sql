-- What is due is found in order through its index, and through that index nothing else, whatever the planner was last told.

-- Every row fulfils the second condition, and only the statements that look for what is due say it: where nothing waited when the planner counted, it would
-- take this index for whatever concerns only rows that wait.
create index tellings_waiting_idx on tellings (due_time) where state = 'WAITING' and due_time >= '-infinity';
drop index tellings_due_idx;

-- Locks the rows it gives, the oldest first, and skips those that another worker is taking; leaves out the tenants that are full. In the scope of every
-- tenant. Without sorting all that is due: a backlog may be long. Index: tellings_waiting_idx.
create function due_tellings(p_limit integer, p_full text[]) returns table (tenant_id text, event_key text, plugin text)
language plpgsql rows 10 set enable_sort = off as $$
begin
    return query
    select t.tenant_id, t.event_key, t.plugin from tellings t
    where t.state = 'WAITING' and t.due_time between '-infinity' and now() and t.tenant_id <> all (p_full)
    order by t.due_time
    limit p_limit
    for update skip locked;
end
$$;
