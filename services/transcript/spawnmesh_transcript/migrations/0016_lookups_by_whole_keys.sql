-- What a function looks up by a whole key, and what a page of rows is deleted by, whatever the planner was last told of how many rows there are: to it, a tenant
-- that it was told nothing of has one row, and every index that begins with the tenant is as good as any other.

-- The entry of that id, and whether it is marked as superseded; no row where there is none. Ranges in order leave the planner no other index. Sees what its
-- caller has just written. Indexes: entries (tenant_id, session_id, entry_id), entries_superseded_idx.
create function find_target(p_tenant_id text, p_session_id text, p_entry_id text)
returns table (seq bigint, kind text, is_superseded boolean) language plpgsql volatile set enable_sort = off as $$
begin
    select e.seq, e.kind into seq, kind
    from entries e
    where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.entry_id between p_entry_id and p_entry_id
    order by e.entry_id
    limit 1;
    if not found then
        return;
    end if;
    perform from entries e
    where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.target_seq between find_target.seq and find_target.seq and e.label = 'SUPERSEDED'
    order by e.target_seq
    limit 1;
    is_superseded := found;
    return next;
end
$$;

-- What an append stored, whose seqs these are. Index: entries primary key.
create function find_appended(p_tenant_id text, p_session_id text, p_first_seq bigint, p_last_seq bigint, out entry_ids text[], out chain_hash bytea)
language plpgsql volatile set enable_sort = off as $$
begin
    select array_agg(stored.entry_id), (array_agg(stored.chain_hash))[count(*)::integer] into entry_ids, chain_hash
    from (
        select e.entry_id, e.chain_hash
        from entries e
        where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.seq between p_first_seq and p_last_seq
        order by e.seq
    ) as stored;
end
$$;

-- As before; the targets of labels are looked up by `find_target`.
create or replace function write_entries(
    head transcripts, p_run_id text, p_epoch bigint, p_service text, p_client text, p_entries jsonb, p_bodies bytea[]
) returns transcripts language plpgsql as $$
declare
    item record;
    target record;
    target_seq bigint;
    moment timestamptz := clock_timestamp();
begin
    for item in
        select * from rows from (
            jsonb_to_recordset(p_entries) as (
                entry_id text, parent_entry_id text, kind text, role text, token_count integer, calls text[], answers text, is_synthetic boolean,
                label text, target_entry_id text, token_vocabulary text
            ),
            unnest(p_bodies)
        ) as given (
            entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label, target_entry_id, token_vocabulary, body
        )
    loop
        target_seq := null;
        if item.label <> '' then
            select * into strict target from find_target(head.tenant_id, head.session_id, item.target_entry_id);
            target_seq := target.seq;
            if item.label = 'SUPERSEDED' and target.kind in ('MESSAGE', 'NOTE') and not target.is_superseded then
                head.superseded_turn_count := head.superseded_turn_count + 1;
            end if;
        end if;
        head.seq := head.seq + 1;
        head.chain_hash := sha256(head.chain_hash || item.body);
        insert into entries (
            tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label, target_seq,
            writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body, token_vocabulary
        ) values (
            head.tenant_id, head.session_id, head.seq, item.entry_id, coalesce(nullif(item.parent_entry_id, ''), head.newest_entry_id), item.kind,
            item.role, item.token_count, item.calls,
            item.answers, item.is_synthetic, item.label, target_seq, p_run_id, p_epoch, p_service, p_client, moment, head.chain_hash, item.body,
            coalesce(item.token_vocabulary, 'o200k_base')
        );
        head.newest_entry_id := item.entry_id;
        head.token_count := head.token_count + item.token_count;
        head.logical_bytes := head.logical_bytes + octet_length(item.body);
        if item.kind in ('MESSAGE', 'NOTE') then
            head.turn_count := head.turn_count + 1;
        end if;
    end loop;
    update transcripts set
        seq = head.seq, chain_hash = head.chain_hash, newest_entry_id = head.newest_entry_id, token_count = head.token_count,
        logical_bytes = head.logical_bytes, turn_count = head.turn_count, superseded_turn_count = head.superseded_turn_count
    where tenant_id = head.tenant_id and session_id = head.session_id;
    return head;
end
$$;

-- As before; the targets of labels are looked up by `find_target`, and what a key has appended by `find_appended`.
create or replace function append_entries(
    p_tenant_id text, p_session_id text, p_key text, p_content_hash bytea, p_run_id text, p_epoch bigint, p_service text, p_client text,
    p_entries jsonb, p_bodies bytea[], p_settings_version bigint, p_target_ids text[], p_waits boolean,
    out outcome text, out incarnation text, out seq bigint, out chain_hash bytea, out writer_run_id text, out writer_epoch bigint,
    out first_seq bigint, out entry_ids text[], out missing_entry_id text, out settings_version bigint,
    out mask_secrets boolean
) language plpgsql as $$
declare
    head transcripts;
    earlier appends;
    tenant tenants;
    refusal text;
begin
    select * into tenant from tenants t where t.tenant_id = p_tenant_id;
    if coalesce(tenant.settings_version, 0) <> p_settings_version then
        outcome := 'SETTINGS_CHANGED';
        settings_version := coalesce(tenant.settings_version, 0);
        mask_secrets := coalesce(tenant.mask_secrets, false);
        return;
    end if;
    if p_waits then
        select * into head from transcripts t where t.tenant_id = p_tenant_id and t.session_id = p_session_id for update;
    else
        select * into head from transcripts t where t.tenant_id = p_tenant_id and t.session_id = p_session_id for update skip locked;
        if not found then
            outcome := 'BUSY';
            return;
        end if;
    end if;
    if not found or head.state <> 'LIVE' or tenant.is_purging then
        outcome := 'NOT_FOUND';
        return;
    end if;
    incarnation := head.incarnation;
    if p_run_id <> '' and (head.writer_run_id <> p_run_id or head.writer_epoch <> p_epoch) then
        refusal := 'CLAIM_LOST';
    elsif p_target_ids is not null then
        select target_id into missing_entry_id
        from unnest(p_target_ids) as target_id
        where not exists (select from find_target(p_tenant_id, p_session_id, target_id))
        limit 1;
        if found then
            refusal := 'TARGET_NOT_FOUND';
        end if;
    end if;
    if refusal is null then
        insert into appends values (
            p_tenant_id, p_session_id, p_key, p_content_hash, head.seq + 1, head.seq + cardinality(p_bodies), head.writer_run_id, head.writer_epoch
        )
        on conflict do nothing;
        if found then
            outcome := 'APPENDED';
            first_seq := head.seq + 1;
            head := write_entries(head, p_run_id, p_epoch, p_service, p_client, p_entries, p_bodies);
        end if;
    end if;
    if outcome is null then -- A key that was used comes before any other refusal.
        select * into earlier from appends a
        where a.tenant_id = p_tenant_id and a.session_id = p_session_id and a.idempotency_key = p_key;
        if found then
            missing_entry_id := null;
            if earlier.content_hash <> p_content_hash then
                outcome := 'KEY_REUSED';
                return;
            end if;
            outcome := 'REPLAYED';
            first_seq := earlier.first_seq;
            seq := earlier.last_seq;
            writer_run_id := earlier.writer_run_id;
            writer_epoch := earlier.writer_epoch;
            select appended.entry_ids, appended.chain_hash into entry_ids, chain_hash
            from find_appended(p_tenant_id, p_session_id, earlier.first_seq, earlier.last_seq) as appended;
            return;
        end if;
        outcome := refusal;
    end if;
    seq := head.seq;
    chain_hash := head.chain_hash;
    writer_run_id := head.writer_run_id;
    writer_epoch := head.writer_epoch;
end
$$;

-- The payloads of an entry. A range in order leaves the planner no other index. Index: payloads_session_idx.
create function find_payloads(p_tenant_id text, p_session_id text, p_seq bigint)
returns table (blob_id text, block_index integer, is_stored boolean, is_leaving boolean) language plpgsql stable set enable_sort = off as $$
begin
    return query
    select p.blob_id, p.block_index, p.is_stored, p.is_leaving
    from payloads p
    where p.tenant_id = p_tenant_id and p.session_id = p_session_id and p.seq between p_seq and p_seq
    order by p.seq, p.block_index;
end
$$;

-- The places of an entry's payloads, which nobody else changes until commit: to the next statement they are where this says. Index: payloads_session_idx.
create function hold_payloads(p_tenant_id text, p_session_id text, p_seq bigint)
returns table (place tid) language plpgsql volatile set enable_sort = off as $$
begin
    return query
    select p.ctid
    from payloads p
    where p.tenant_id = p_tenant_id and p.session_id = p_session_id and p.seq between p_seq and p_seq
    order by p.seq, p.block_index
    for no key update;
end
$$;

-- As before; payloads are looked up by `find_payloads`.
create or replace function keep_payloads(
    p_tenant_id text, p_session_id text, p_stub_seqs bigint[], p_token_counts integer[], p_stub_bodies bytea[], p_files jsonb
) returns table (kept_seq bigint) language plpgsql as $$
begin
    if not hold_for_moving(p_tenant_id, p_session_id) then
        return;
    end if;
    return query
    with fresh as materialized (
        select distinct file.seq
        from jsonb_to_recordset(p_files) as file (seq bigint)
        where not exists (select from find_payloads(p_tenant_id, p_session_id, file.seq))
    ), stubbed as (
        insert into stubs (tenant_id, session_id, seq, token_count, body)
        select p_tenant_id, p_session_id, stub.seq, stub.token_count, stub.body
        from unnest(p_stub_seqs, p_token_counts, p_stub_bodies) as stub (seq, token_count, body)
        where stub.seq in (select f.seq from fresh f)
    ), kept as (
        insert into payloads (tenant_id, blob_id, session_id, seq, block_index, tool_name, about, mime_type, size_bytes, line_count, sha256)
        select p_tenant_id, file.blob_id, p_session_id, file.seq, file.block_index, file.tool_name, file.about, file.mime_type, file.size_bytes,
            file.line_count, file.sha256
        from jsonb_to_recordset(p_files) as file (
            blob_id text, seq bigint, block_index integer, tool_name text, about text, mime_type text, size_bytes bigint, line_count bigint,
            sha256 text
        )
        where file.seq in (select f.seq from fresh f)
    )
    select f.seq from fresh f;
end
$$;

-- As before; payloads are looked up by `find_payloads` and `hold_payloads`.
create or replace function cool_entries(p_tenant_id text, p_session_id text, p_entries jsonb, p_bodies bytea[])
returns table (cooled_seq bigint, cooled_bytes integer) language plpgsql set enable_sort = off as $$
declare
    item record;
    place tid;
    total bigint := 0;
begin
    if not hold_for_moving(p_tenant_id, p_session_id) then
        return;
    end if;
    for item in
        select * from rows from (
            jsonb_to_recordset(p_entries) as (seq bigint, whole_bytes integer, blob_ids text[]), unnest(p_bodies)
        ) as given (seq, whole_bytes, blob_ids, body)
    loop
        update entries e
        set body = item.body, dropped_bytes = item.whole_bytes - octet_length(item.body)
        where e.ctid = (
            select found.ctid
            from entries found
            where found.tenant_id = p_tenant_id and found.session_id = p_session_id and found.seq between item.seq and item.seq
            order by found.seq
            limit 1
        )
            and e.dropped_bytes = 0 and octet_length(e.body) = item.whole_bytes
            and (
                select array_agg(p.blob_id order by p.block_index)
                from find_payloads(p_tenant_id, p_session_id, item.seq) as p
                where p.is_stored and not p.is_leaving
            ) = item.blob_ids
        returning e.seq, e.dropped_bytes into cooled_seq, cooled_bytes;
        if found then
            for place in select held.place from hold_payloads(p_tenant_id, p_session_id, item.seq) as held loop
                update payloads p set is_inline = false where p.ctid = place;
            end loop;
            total := total + cooled_bytes;
            return next;
        end if;
    end loop;
    if total > 0 then
        update transcripts t
        set dropped_bytes = t.dropped_bytes + total
        where t.tenant_id = p_tenant_id and t.session_id = p_session_id;
    end if;
end
$$;

-- As before; payloads are looked up by `hold_payloads`.
create or replace function warm_entries(p_tenant_id text, p_session_id text, p_seqs bigint[], p_bodies bytea[])
returns table (warmed_seq bigint, warmed_bytes integer) language plpgsql set enable_sort = off as $$
declare
    item record;
    place tid;
    stored_bytes integer;
    total bigint := 0;
begin
    if not hold_for_moving(p_tenant_id, p_session_id) then
        return;
    end if;
    for item in select * from unnest(p_seqs, p_bodies) as given (seq, body) loop
        select e.seq, e.dropped_bytes, octet_length(e.body) into warmed_seq, warmed_bytes, stored_bytes
        from entries e
        where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.seq between item.seq and item.seq
        order by e.seq;
        if not found or (warmed_bytes > 0 and octet_length(item.body) is distinct from stored_bytes + warmed_bytes) then
            continue;
        end if;
        if warmed_bytes > 0 then
            update entries e
            set body = item.body, dropped_bytes = 0
            where e.ctid = (
                select found.ctid
                from entries found
                where found.tenant_id = p_tenant_id and found.session_id = p_session_id and found.seq between item.seq and item.seq
                order by found.seq
                limit 1
            );
            if not found then -- Its tokens are just being counted again.
                continue;
            end if;
            total := total + warmed_bytes;
        end if;
        delete from stubs s where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.seq = item.seq;
        for place in select held.place from hold_payloads(p_tenant_id, p_session_id, item.seq) as held loop
            update payloads p set is_leaving = true where p.ctid = place;
        end loop;
        return next;
    end loop;
    if total > 0 then
        update transcripts t
        set dropped_bytes = t.dropped_bytes - total
        where t.tenant_id = p_tenant_id and t.session_id = p_session_id;
    end if;
end
$$;

-- Deletes the rows at these places, and gives a row for each: of those that a caller has found in the order of an index, since a range of keys may be looked for
-- in any index. The caller's rights hold.
create function delete_at(p_table regclass, p_places tid[]) returns setof tid
language plpgsql set enable_seqscan = off set enable_indexscan = off set enable_bitmapscan = off as $$
begin
    return query execute format('delete from %s where ctid = any($1) returning ctid', p_table) using p_places;
end
$$;

-- As before; the order leaves the planner no other index. Index: activities_session_idx.
create or replace function delete_activities(p_tenant_id text, p_session_id text, p_row_count integer)
returns setof bigint language plpgsql set enable_sort = off set enable_seqscan = off as $$
declare
    places tid[];
    positions bigint[];
begin
    perform hold_activities(p_tenant_id);
    select array_agg(page.place), array_agg(page.position) into places, positions
    from (
        select n.ctid as place, n.position
        from activities n
        where n.tenant_id = p_tenant_id and n.session_id between p_session_id and p_session_id
        order by n.session_id, n.position
        limit p_row_count
    ) as page;
    perform delete_at('activities', places);
    return query select unnest(positions);
end
$$;
