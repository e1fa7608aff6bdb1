-- Writing down a set in one round trip to the database, under the very policy by which it was judged.

-- Outcomes: INTENDED, with the hashes that are not stored yet; EXISTS for a set id that was used before; POLICY_CHANGED where the tenant's settings
-- have another version than the one given; UNKNOWN_TENANT. Only INTENDED writes anything.
create function intend_set(
    p_tenant_id text, p_settings_version bigint, p_set_id text, p_session_id text,
    p_names text[], p_sizes bigint[], p_hashes text[], p_mime_types text[],
    out outcome text, out unstored text[]
) language plpgsql as $$
declare
    held_version bigint;
begin
    -- Not waited for to reach the disk: the rows have to outlive the process that puts the objects, not the database.
    perform set_config('synchronous_commit', 'off', true);
    select t.settings_version into held_version from attachment_tenants t where t.tenant_id = p_tenant_id and not t.purging;
    if not found then
        outcome := 'UNKNOWN_TENANT';
        return;
    end if;
    if held_version <> p_settings_version then
        outcome := 'POLICY_CHANGED';
        return;
    end if;
    insert into sets (tenant_id, set_id, session_id, state)
    values (p_tenant_id, p_set_id, p_session_id, 'STAGING')
    on conflict (tenant_id, set_id) do nothing;
    if not found then
        outcome := 'EXISTS';
        return;
    end if;
    insert into set_files (tenant_id, set_id, position, name, size_bytes, sha256, mime_type)
    select p_tenant_id, p_set_id, f.position, f.name, f.size_bytes, f.sha256, f.mime_type
    from unnest(p_names, p_sizes, p_hashes, p_mime_types) with ordinality as f (name, size_bytes, sha256, mime_type, position);
    with wanted as (
        insert into blobs as b (tenant_id, sha256, size_bytes, state, object_key)
        select p_tenant_id, f.sha256, f.size_bytes, 'PENDING', 'sha256/' || left(f.sha256, 2) || '/' || f.sha256
        from (select distinct d.size_bytes, d.sha256 from unnest(p_sizes, p_hashes) as d (size_bytes, sha256)) f
        order by f.sha256
        on conflict (tenant_id, sha256) do update
        set state = case b.state when 'STORED' then 'STORED' else 'PENDING' end, state_time = now(),
            object_key = case b.state when 'STORED' then b.object_key else excluded.object_key end
        returning b.sha256, b.state
    )
    select coalesce(array_agg(w.sha256) filter (where w.state <> 'STORED'), '{}') into unstored from wanted w;
    outcome := 'INTENDED';
end;
$$;
