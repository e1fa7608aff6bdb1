-- name: measure_wait
-- Locks the row if it exists. A new wait begins now, also one for another generation of the plugin.
-- Index: plugin_waits_pkey.
with wait as (
    insert into plugin_waits as w (tenant_id, run_id, plugin, generation)
    values (%(tenant_id)s, %(run_id)s, %(plugin)s, %(generation)s)
    on conflict (tenant_id, run_id, plugin) do update
    set generation = excluded.generation,
        begin_time = case when w.generation = excluded.generation then w.begin_time
                          else excluded.begin_time end
    returning begin_time
)
select now() - begin_time as waited from wait;

-- name: end_wait
-- Locks the row. Index: plugin_waits_pkey.
delete from plugin_waits
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and plugin = %(plugin)s;
