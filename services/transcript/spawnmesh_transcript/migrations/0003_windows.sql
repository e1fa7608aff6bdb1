-- Every kind of entry, clients as writers, and the prompt window.

alter table entries add column writer_client text not null default '';
alter table entries drop constraint entries_kind_check;
alter table entries add constraint entries_kind_check check (
    kind in ('HEADER', 'MESSAGE', 'NOTE', 'LABEL', 'MODEL_CHANGE', 'COMPACTION', 'BRANCH_SUMMARY', 'CUSTOM', 'OPAQUE', 'MIRROR')
);
alter table entries drop constraint entries_role_check;
alter table entries add constraint entries_role_check check (
    role in ('', 'USER', 'ASSISTANT', 'TOOL_RESULT', 'BASH_EXECUTION', 'CUSTOM')
);

drop function append_entries(text, text, text, bytea, text, bigint, text, jsonb, bytea[]);
drop function write_entries(text, text, text, bigint, text, jsonb, bytea[]);

-- Puts entries behind the head and moves it. The caller has the transcript's row locked. p_entries is a JSON list with, for each body:
-- entry_id, kind, role, token_count, calls, answers, is_synthetic, label, target_entry_id. Every target must exist.
-- Cost: one insert for each entry, whatever the length of the transcript. Indexes: the primary keys; entries (tenant_id, session_id, entry_id).
create function write_entries(
    p_tenant_id text, p_session_id text, p_run_id text, p_epoch bigint, p_service text, p_client text, p_entries jsonb, p_bodies bytea[]
) returns transcripts language plpgsql as $$
declare
    head transcripts;
    item record;
    target entries;
    moment timestamptz := clock_timestamp();
begin
    select * into strict head from transcripts where tenant_id = p_tenant_id and session_id = p_session_id;
    for item in
        select * from rows from (
            jsonb_to_recordset(p_entries) as (
                entry_id text, kind text, role text, token_count integer, calls text[], answers text, is_synthetic boolean,
                label text, target_entry_id text
            ),
            unnest(p_bodies)
        ) as given (
            entry_id, kind, role, token_count, calls, answers, is_synthetic, label, target_entry_id, body
        )
    loop
        target := null;
        if item.label <> '' then
            select * into strict target from entries
            where tenant_id = p_tenant_id and session_id = p_session_id and entry_id = item.target_entry_id;
            if item.label = 'SUPERSEDED' and target.kind in ('MESSAGE', 'NOTE') and not exists (
                select from entries
                where tenant_id = p_tenant_id and session_id = p_session_id and target_seq = target.seq and label = 'SUPERSEDED'
            ) then
                head.superseded_turn_count := head.superseded_turn_count + 1;
            end if;
        end if;
        head.seq := head.seq + 1;
        head.chain_hash := sha256(head.chain_hash || item.body);
        insert into entries (
            tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label, target_seq,
            writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body
        ) values (
            p_tenant_id, p_session_id, head.seq, item.entry_id, head.newest_entry_id, item.kind, item.role, item.token_count, item.calls,
            item.answers, item.is_synthetic, item.label, target.seq, p_run_id, p_epoch, p_service, p_client, moment, head.chain_hash, item.body
        );
        head.newest_entry_id := item.entry_id;
        head.token_count := head.token_count + item.token_count;
        if item.kind in ('MESSAGE', 'NOTE') then
            head.turn_count := head.turn_count + 1;
        end if;
    end loop;
    update transcripts set
        seq = head.seq, chain_hash = head.chain_hash, newest_entry_id = head.newest_entry_id, token_count = head.token_count,
        turn_count = head.turn_count, superseded_turn_count = head.superseded_turn_count
    where tenant_id = p_tenant_id and session_id = p_session_id;
    return head;
end
$$;

-- Checks the key, then the claim, then the entries that others refer to, and writes. outcome is one of
--   NOT_FOUND, KEY_REUSED, CLAIM_LOST (with the head as it is), TARGET_NOT_FOUND (missing_entry_id says which), REPLAYED, APPENDED.
-- The last two come with the ids that were stored, the first seq, and the head right behind them. p_run_id is empty for an unowned append.
-- Locks the transcript's row until commit. Indexes: the primary keys; entries (tenant_id, session_id, entry_id).
create function append_entries(
    p_tenant_id text, p_session_id text, p_key text, p_content_hash bytea, p_run_id text, p_epoch bigint, p_service text, p_client text,
    p_entries jsonb, p_bodies bytea[],
    out outcome text, out incarnation text, out seq bigint, out chain_hash bytea, out writer_run_id text, out writer_epoch bigint,
    out first_seq bigint, out entry_ids text[], out missing_entry_id text
) language plpgsql as $$
declare
    head transcripts;
    earlier appends;
begin
    select * into head from transcripts t where t.tenant_id = p_tenant_id and t.session_id = p_session_id for update;
    if not found then
        outcome := 'NOT_FOUND';
        return;
    end if;
    incarnation := head.incarnation;
    select * into earlier from appends a
    where a.tenant_id = p_tenant_id and a.session_id = p_session_id and a.idempotency_key = p_key;
    if found then
        if earlier.content_hash <> p_content_hash then
            outcome := 'KEY_REUSED';
            return;
        end if;
        outcome := 'REPLAYED';
        first_seq := earlier.first_seq;
        seq := earlier.last_seq;
        writer_run_id := earlier.writer_run_id;
        writer_epoch := earlier.writer_epoch;
        select array_agg(e.entry_id order by e.seq), (array_agg(e.chain_hash order by e.seq desc))[1]
        into entry_ids, chain_hash
        from entries e
        where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.seq between earlier.first_seq and earlier.last_seq;
        return;
    end if;
    if p_run_id <> '' and (head.writer_run_id <> p_run_id or head.writer_epoch <> p_epoch) then
        outcome := 'CLAIM_LOST';
    else
        select given.target_entry_id into missing_entry_id
        from jsonb_to_recordset(p_entries) as given (target_entry_id text)
        where given.target_entry_id <> '' and not exists (
            select from entries e
            where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.entry_id = given.target_entry_id
        )
        limit 1;
        if missing_entry_id is not null then
            outcome := 'TARGET_NOT_FOUND';
        else
            outcome := 'APPENDED';
            first_seq := head.seq + 1;
            head := write_entries(p_tenant_id, p_session_id, p_run_id, p_epoch, p_service, p_client, p_entries, p_bodies);
            insert into appends values (
                p_tenant_id, p_session_id, p_key, p_content_hash, first_seq, head.seq, head.writer_run_id, head.writer_epoch
            );
            select array_agg(given.entry_id) into entry_ids from jsonb_to_recordset(p_entries) as given (entry_id text);
        end if;
    end if;
    seq := head.seq;
    chain_hash := head.chain_hash;
    writer_run_id := head.writer_run_id;
    writer_epoch := head.writer_epoch;
end
$$;

-- The head, and beside it the entries from p_from_seq to the head: at most p_row_count, and no more than p_max_bytes of bodies but always the
-- first. One row without an entry where there are none, no row where there is no transcript. All of one moment, in no particular order. No lock.
-- Cost: the entries it gives. Indexes: the primary keys; without enable_sort = off, a planner that thinks transcripts short takes another
-- index, reads the whole transcript and sorts it.
create function scan_window(p_tenant_id text, p_session_id text, p_from_seq bigint, p_row_count integer, p_max_bytes bigint)
returns table (
    incarnation text, head_seq bigint, head_chain_hash bytea, head_run_id text, head_epoch bigint,
    seq bigint, kind text, role text, writer_run_id text, writer_epoch bigint, writer_client text, chain_hash bytea, body bytea
) language plpgsql stable set enable_sort = off as $$
begin
    return query
    select
        t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch,
        found.seq, found.kind, found.role, found.writer_run_id, found.writer_epoch, found.writer_client, found.chain_hash, found.body
    from transcripts t
    left join lateral (
        select * from (
            select page.*, sum(octet_length(page.body)) over (order by page.seq) as bytes_so_far
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
    where t.tenant_id = p_tenant_id and t.session_id = p_session_id;
end
$$;
