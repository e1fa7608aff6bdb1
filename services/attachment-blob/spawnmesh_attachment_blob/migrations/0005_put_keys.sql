-- Staging under keys that were never used before, and under the very limits by which the set was judged.
-- The stage_set before this one stays for replicas of the version before.

-- The collector asks for the uploads within each range of keys.
create index uploads_object_key_idx on uploads (tenant_id, object_key) where state <> 'COMPLETE';

-- As before, but for two things. The objects of `unstored` are put under their hash and p_key_suffix: a deletion or a put that was given up
-- and reaches S3 late concerns a key that nobody refers to any more. POLICY_CHANGED is answered where the tenant's limits are others than
-- p_limits (enabled as 0 or 1, files, bytes of a file, bytes of all), which a version does not tell of a tenant that was removed and made anew.
create function stage_set(
    p_tenant_id text, p_limits bigint[], p_set_id text, p_session_id text,
    p_names text[], p_sizes bigint[], p_hashes text[], p_mime_types text[], p_uploaded text[], p_key_suffix text,
    out outcome text, out unstored text[], out create_time timestamptz
) language plpgsql as $$
declare
    held_limits bigint[];
    wanted record;
begin
    perform pg_advisory_xact_lock_shared(hashtextextended('store something of ' || p_tenant_id, 0));
    select array[t.enabled::integer, t.max_file_count, t.max_file_bytes, t.max_total_bytes]::bigint[] into held_limits
    from attachment_tenants t where t.tenant_id = p_tenant_id and not t.purging;
    if not found then
        outcome := 'UNKNOWN_TENANT';
        return;
    end if;
    if held_limits <> p_limits then
        outcome := 'POLICY_CHANGED';
        return;
    end if;
    loop
        insert into sets as s (tenant_id, set_id, session_id, state)
        values (p_tenant_id, p_set_id, p_session_id, 'STAGED')
        on conflict (tenant_id, set_id) do nothing
        returning s.create_time into create_time;
        exit when found;
        -- What a replica of an older version did not finish; one that is at work on it is waited for, and then it is STAGED.
        delete from sets s where s.tenant_id = p_tenant_id and s.set_id = p_set_id and s.state = 'STAGING';
        if not found then
            outcome := 'EXISTS';
            return;
        end if;
    end loop;
    insert into set_files (tenant_id, set_id, position, name, size_bytes, sha256, mime_type)
    select p_tenant_id, p_set_id, f.position, f.name, f.size_bytes, f.sha256, f.mime_type
    from unnest(p_names, p_sizes, p_hashes, p_mime_types) with ordinality as f (name, size_bytes, sha256, mime_type, position);
    unstored := '{}';
    for wanted in
        select distinct f.sha256, f.size_bytes, 'sha256/' || left(f.sha256, 2) || '/' || f.sha256 || '.' || p_key_suffix as object_key
        from unnest(p_hashes, p_sizes) as f (sha256, size_bytes)
        order by f.sha256
    loop
        -- Each statement waits for who holds the row and then sees it as it became; where that is not what it looks for, the next one is tried.
        loop
            if wanted.sha256 <> all (p_uploaded) then
                insert into blobs (tenant_id, sha256, size_bytes, state, object_key)
                values (p_tenant_id, wanted.sha256, wanted.size_bytes, 'STORED', wanted.object_key)
                on conflict (tenant_id, sha256) do nothing;
                if found then
                    unstored := unstored || wanted.sha256;
                    exit;
                end if;
            end if;
            perform from blobs b where b.tenant_id = p_tenant_id and b.sha256 = wanted.sha256 and b.state = 'STORED' for share;
            exit when found;
            if wanted.sha256 = any (p_uploaded) then
                outcome := 'UPLOAD_GONE';
                return;
            end if;
            -- Marked for deletion, and its object may be gone, or about to go.
            update blobs b
            set state = 'STORED', state_time = now(), object_key = wanted.object_key
            where b.tenant_id = p_tenant_id and b.sha256 = wanted.sha256 and b.state <> 'STORED';
            if found then
                unstored := unstored || wanted.sha256;
                exit;
            end if;
        end loop;
    end loop;
    outcome := 'WRITTEN';
end;
$$;
