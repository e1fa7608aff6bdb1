-- name: get_policy
-- Takes no lock. Index: tenant_policies_pkey.
select blind_model_policy, stop_after_side_effects, max_tries,
       requests_per_minute, tokens_per_minute, spend_micros_per_day, trace_content,
       tenant_class
from tenant_policies
where tenant_id = %(tenant_id)s;

-- name: put_policy
-- Locks the row if it exists. Index: tenant_policies_pkey. The newest version wins, in any order of
-- the calls.
insert into tenant_policies as p
    (tenant_id, settings_version, blind_model_policy, stop_after_side_effects, max_tries,
     requests_per_minute, tokens_per_minute, spend_micros_per_day, trace_content,
     tenant_class)
values
    (%(tenant_id)s, %(settings_version)s, %(blind_model_policy)s, %(stop_after_side_effects)s,
     %(max_tries)s, %(requests_per_minute)s, %(tokens_per_minute)s, %(spend_micros_per_day)s,
     %(trace_content)s, %(tenant_class)s)
on conflict (tenant_id) do update
set settings_version = excluded.settings_version,
    blind_model_policy = excluded.blind_model_policy,
    stop_after_side_effects = excluded.stop_after_side_effects,
    max_tries = excluded.max_tries,
    requests_per_minute = excluded.requests_per_minute,
    tokens_per_minute = excluded.tokens_per_minute,
    spend_micros_per_day = excluded.spend_micros_per_day,
    trace_content = excluded.trace_content,
    tenant_class = excluded.tenant_class
where p.settings_version < excluded.settings_version;

-- name: notify_policies
-- Notifies every replica once the transaction has committed.
select pg_notify('model_router_policies' || suffix, '') from _spawnmesh_channels;
