-- Entries whose payloads are in the blob store alone, what transcripts take, and by which vocabulary tokens were counted.

alter table tenants
    add column token_vocabulary   text    not null default 'o200k_base',
    add column compact_at_percent integer not null default 0,
    add column work_time          timestamptz; -- When a worker last took the tenant's turn.
create policy every_tenant on tenants for select using (current_setting('spawnmesh.tenant', true) = '*');

-- dropped_bytes: by how much the stored body is shorter than the one that was appended, since payloads of it are in the blob store alone; 0 for a
-- body that is whole. chain_hash and token_count are always those of the whole body.
alter table entries
    add column dropped_bytes    integer not null default 0,
    add column token_vocabulary text    not null default 'o200k_base';

-- logical_bytes: of all bodies as they were appended; dropped_bytes: how many of them are not in the table. cooled_seq: where the head was when a worker
-- last dropped all that was to be dropped.
alter table transcripts
    add column logical_bytes bigint not null default 0,
    add column dropped_bytes bigint not null default 0,
    add column cooled_seq    bigint not null default 0;

-- is_inline: the stored body of the entry has it too. is_leaving: the entry is whole again and has no reference; the blob store is to give it up,
-- then the row goes. Nobody reads it any more.
alter table payloads
    add column is_inline  boolean not null default true,
    add column is_leaving boolean not null default false;
create index payloads_inline_idx on payloads (tenant_id, session_id, seq) where is_inline and not is_leaving;
create index payloads_leaving_idx on payloads (tenant_id, session_id) where is_leaving;

-- No tenant's rows are hidden from this one statement.
alter table transcripts no force row level security;
alter table entries no force row level security;
update transcripts t
set logical_bytes = (
    select coalesce(sum(octet_length(e.body)), 0) from entries e where e.tenant_id = t.tenant_id and e.session_id = t.session_id
);
alter table transcripts force row level security;
alter table entries force row level security;

-- Puts entries behind the head and moves it. The caller has the transcript's row locked, and hands it in. p_entries is a JSON list with, for each body:
-- entry_id, parent_entry_id, kind, role, token_count, token_vocabulary (none where a replica of the version before made them ready), calls, answers, is_synthetic, label, target_entry_id. The targets of labels must exist. An
-- empty parent is the entry before.
-- Cost: one insert for each entry, whatever the length of the transcript. Indexes: the primary keys; entries (tenant_id, session_id, entry_id).
create or replace function write_entries(
    head transcripts, p_run_id text, p_epoch bigint, p_service text, p_client text, p_entries jsonb, p_bodies bytea[]
) returns transcripts language plpgsql as $$
declare
    item record;
    target entries;
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
        target := null;
        if item.label <> '' then
            select * into strict target from entries
            where tenant_id = head.tenant_id and session_id = head.session_id and entry_id = item.target_entry_id;
            if item.label = 'SUPERSEDED' and target.kind in ('MESSAGE', 'NOTE') and not exists (
                select from entries
                where tenant_id = head.tenant_id and session_id = head.session_id and target_seq = target.seq and label = 'SUPERSEDED'
            ) then
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
            item.answers, item.is_synthetic, item.label, target.seq, p_run_id, p_epoch, p_service, p_client, moment, head.chain_hash, item.body,
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

-- As scan_window, which stays for replicas of the version before: with how much shorter each body is than it was appended, and its limit counts
-- whole bodies. Cost and indexes as there.
create function scan_behind_fence(p_tenant_id text, p_session_id text, p_from_seq bigint, p_row_count integer, p_max_bytes bigint)
returns table (
    incarnation text, head_seq bigint, head_chain_hash bytea, head_run_id text, head_epoch bigint,
    seq bigint, kind text, role text, writer_run_id text, writer_epoch bigint, writer_client text, chain_hash bytea, body bytea, dropped_bytes integer
) language plpgsql stable set enable_sort = off as $$
begin
    return query
    select
        t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch,
        found.seq, found.kind, found.role, found.writer_run_id, found.writer_epoch, found.writer_client, found.chain_hash, found.body,
        found.dropped_bytes
    from transcripts t
    left join lateral (
        select * from (
            select page.*, sum(octet_length(page.body) + page.dropped_bytes) over (order by page.seq) as bytes_so_far
            from (
                select e.*
                from entries e
                where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.seq between p_from_seq and t.seq
                order by e.seq
                limit p_row_count
            ) as page
        ) as measured
        where measured.bytes_so_far <= p_max_bytes or measured.seq = p_from_seq
    ) as found on true
    where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.state = 'LIVE' and not is_purged(p_tenant_id);
end
$$;

-- Locks the transcript's row until commit, so that no deletion begins, no writer is at it, and moves of its payloads go one after the other. False
-- where nobody may read it. Index: transcripts primary key.
create function hold_for_moving(p_tenant_id text, p_session_id text) returns boolean language plpgsql volatile as $$
begin
    if not enter_tenant(p_tenant_id) then
        return false;
    end if;
    perform from transcripts t
    where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.state = 'LIVE'
    for no key update;
    return found;
end
$$;

-- Names payloads of entries that have none yet, whose inline copies stay. p_files is a JSON list of payloads, each with its seq. The seqs whose payloads
-- it named; others had some. Locks as hold_for_moving. Indexes: payloads_session_idx, the primary keys.
create function keep_payloads(
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
        where not exists (
            select from payloads p where p.tenant_id = p_tenant_id and p.session_id = p_session_id and p.seq = file.seq
        )
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

-- Drops inline copies. p_entries is a JSON list with, for each shorter body: seq, whole_bytes, and the blob_ids that make it whole. The seqs that it was
-- done for, and by how many bytes they are shorter; others are as they were, since somebody came first. Locks as hold_for_moving. Entry by entry, each
-- found by a range in order, which leaves the planner no other index. Indexes: entries primary key, payloads_session_idx.
create function cool_entries(p_tenant_id text, p_session_id text, p_entries jsonb, p_bodies bytea[])
returns table (cooled_seq bigint, cooled_bytes integer) language plpgsql set enable_sort = off as $$
declare
    item record;
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
                from payloads p
                where p.tenant_id = p_tenant_id and p.session_id = p_session_id and p.seq = item.seq and p.is_stored and not p.is_leaving
            ) = item.blob_ids
        returning e.seq, e.dropped_bytes into cooled_seq, cooled_bytes;
        if found then
            update payloads p
            set is_inline = false
            where p.tenant_id = p_tenant_id and p.session_id = p_session_id and p.seq = item.seq;
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

-- Puts whole bodies back, takes references away, and has the payloads leave. A body is null for an entry that is whole. The seqs that it was done
-- for, and how many bytes came back; others are as they were, since somebody came first. Locks as hold_for_moving. Entry by entry, as above. Indexes:
-- entries and stubs primary keys, payloads_session_idx.
create function warm_entries(p_tenant_id text, p_session_id text, p_seqs bigint[], p_bodies bytea[])
returns table (warmed_seq bigint, warmed_bytes integer) language plpgsql set enable_sort = off as $$
declare
    item record;
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
        update payloads p
        set is_leaving = true
        where p.tenant_id = p_tenant_id and p.session_id = p_session_id and p.seq = item.seq;
        return next;
    end loop;
    if total > 0 then
        update transcripts t
        set dropped_bytes = t.dropped_bytes - total
        where t.tenant_id = p_tenant_id and t.session_id = p_session_id;
    end if;
end
$$;
