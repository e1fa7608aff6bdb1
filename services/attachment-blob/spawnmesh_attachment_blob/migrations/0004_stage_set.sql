-- Staging in one transaction: the rows, then the objects while the rows are not committed, then the commit.
-- intend_set stays for replicas of the version before, and so do the states STAGING and PENDING, which nothing else writes any more.

-- Writes down a set as STAGED and its blobs as STORED, for a caller who puts the objects of `unstored` before it commits. Outcomes: WRITTEN; EXISTS for
-- a set id that was used before; POLICY_CHANGED where the tenant's settings have another version than the one given; UNKNOWN_TENANT; UPLOAD_GONE where one of
-- p_uploaded, hashes whose bytes the caller does not have, is not stored any more. The caller rolls back after every outcome but WRITTEN and EXISTS.
-- Until the transaction ends nobody takes one of the blobs away, and nobody else puts one of `unstored`; others may stage what is stored already.
-- Locks the tenant against being purged, then the set, then the blobs in the order of their hashes.
create function stage_set(
    p_tenant_id text, p_settings_version bigint, p_set_id text, p_session_id text,
    p_names text[], p_sizes bigint[], p_hashes text[], p_mime_types text[], p_uploaded text[],
    out outcome text, out unstored text[], out create_time timestamptz
) language plpgsql as $$
declare
    held_version bigint;
    wanted record;
begin
    perform pg_advisory_xact_lock_shared(hashtextextended('store something of ' || p_tenant_id, 0));
    select t.settings_version into held_version from attachment_tenants t where t.tenant_id = p_tenant_id and not t.purging;
    if not found then
        outcome := 'UNKNOWN_TENANT';
        return;
    end if;
    if held_version <> p_settings_version then
        outcome := 'POLICY_CHANGED';
        return;
    end if;
    loop
        insert into sets as s (tenant_id, set_id, session_id, state)
        values (p_tenant_id, p_set_id, p_session_id, 'STAGED')
        on conflict (tenant_id, set_id) do nothing
        returning s.create_time into create_time;
        exit when found;
        -- What a replica of the version before did not finish; one that is at work on it is waited for, and then it is STAGED.
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
        select distinct f.sha256, f.size_bytes, 'sha256/' || left(f.sha256, 2) || '/' || f.sha256 as object_key
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
            -- Marked for deletion, and its object may be gone.
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
