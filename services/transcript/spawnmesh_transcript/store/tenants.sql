-- name: put_tenant
-- Locks the row if it exists. An older or equal version changes nothing. Index: tenants primary
-- key.
insert into tenants as t (
    tenant_id, settings_version, mask_secrets, stub_large_tool_payloads, large_payload_bytes,
    compact_at_percent, token_vocabulary
) values (
    %(tenant_id)s, %(settings_version)s, %(mask_secrets)s, %(stub_large_tool_payloads)s,
    %(large_payload_bytes)s, %(compact_at_percent)s, %(token_vocabulary)s
)
on conflict (tenant_id) do update
set settings_version = excluded.settings_version, mask_secrets = excluded.mask_secrets,
    stub_large_tool_payloads = excluded.stub_large_tool_payloads,
    large_payload_bytes = excluded.large_payload_bytes, compact_at_percent = excluded.compact_at_percent,
    token_vocabulary = excluded.token_vocabulary
where t.settings_version < excluded.settings_version;

-- name: find_policy
-- Takes no lock. Index: tenants primary key.
select settings_version, mask_secrets, stub_large_tool_payloads, large_payload_bytes, compact_at_percent,
    token_vocabulary
from tenants
where tenant_id = %(tenant_id)s;

-- name: list_tenants
-- Runs in the scope of every tenant. Takes no lock. Index: tenant_work primary key.
select tenant_id from tenant_work
where tenant_id > %(after_tenant_id)s
order by tenant_id
limit (select %(row_count)s::bigint);

-- name: claim_tenant
-- Locks the row. Changes nothing if another worker claimed the tenant in the interval, or the
-- tenant is being purged. Index: tenant_work primary key.
update tenant_work
set work_time = now()
where tenant_id = %(tenant_id)s
    and (work_time is null or work_time <= now() - make_interval(secs => %(interval_seconds)s))
returning tenant_id;

-- name: sum_sizes
-- Takes no lock. Index: transcripts primary key.
select coalesce(sum(logical_bytes), 0)::bigint as logical_bytes,
    coalesce(sum(logical_bytes - dropped_bytes), 0)::bigint as stored_bytes
from transcripts
where tenant_id = %(tenant_id)s and state = 'LIVE';
