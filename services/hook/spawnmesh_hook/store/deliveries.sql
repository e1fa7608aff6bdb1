-- name: insert_delivery
-- Locks no existing row.
insert into deliveries
    (tenant_id, delivery_id, plugin, hook, session_id, run_id, start_time, latency, decision, error, attempt)
values
    (%(tenant_id)s, %(delivery_id)s, %(plugin)s, %(hook)s, %(session_id)s, %(run_id)s, %(start_time)s,
     %(latency)s, %(decision)s, %(error)s, %(attempt)s);

-- name: list_deliveries
-- Takes no lock. An empty condition does not filter. Looks at %(scan_limit)s deliveries at most,
-- whatever it finds. The last of these is a row with `is_end`, also if it does not match. They are
-- limited before they are numbered: the planner sorts all rows otherwise. `{narrowest}` is one more
-- condition: for the run, the session or the plugin, or none. Indexes: deliveries_run_idx,
-- deliveries_session_idx, deliveries_plugin_idx and deliveries_newest_idx.
select delivery_id, plugin, hook, session_id, run_id, start_time, latency, decision, error, attempt,
    is_match, place = %(scan_limit)s as is_end
from (
    select scanned.*,
        (%(run_id)s = '' or run_id = %(run_id)s)
            and (%(session_id)s = '' or session_id = %(session_id)s)
            and (%(plugin)s = '' or plugin = %(plugin)s)
            and (%(decision)s = '' or decision = %(decision)s) as is_match
    from (
        select *, row_number() over (order by start_time desc, delivery_id desc) as place
        from (
            select * from deliveries
            where tenant_id = %(tenant_id)s {narrowest}
                and start_time >= %(start_time)s and start_time < %(end_time)s
                and (start_time, delivery_id) < (%(before_time)s, %(before_id)s)
            order by start_time desc, delivery_id desc
            limit %(scan_limit)s
        ) nearest
    ) scanned
) compared
where is_match or place = %(scan_limit)s
order by start_time desc, delivery_id desc
limit %(limit)s;
