-- A page of a purge costs a page, also where the planner was told nothing of the tenant and believes that it has one row: then it would look for the whole
-- page anew for each row.

-- Deletes up to so many rows of the tenant; gives how many. Index: budget_periods_pkey.
create function purge_periods(p_tenant_id text, p_limit integer) returns bigint
language plpgsql set enable_sort = off as $$
declare
    place tid;
    row_count bigint := 0;
begin
    for place in
        select b.ctid from budget_periods b where b.tenant_id = p_tenant_id order by b.period, b.begin_time limit p_limit for update
    loop
        delete from budget_periods b where b.ctid = place;
        row_count := row_count + 1;
    end loop;
    return row_count;
end
$$;
