-- Appending once more, with fewer statements: it is what the service does most.

drop function append_entries(text, text, text, bytea, text, bigint, text, text, jsonb, bytea[], bigint);
drop function write_entries(text, text, text, bigint, text, text, jsonb, bytea[]);

-- Puts entries behind the head and moves it. The caller has the transcript's row locked, and hands it in. p_entries is a JSON list with, for each body:
-- entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label, target_entry_id. The targets of labels must exist. An
-- empty parent is the entry before.
-- Cost: one insert for each entry, whatever the length of the transcript. Indexes: the primary keys; entries (tenant_id, session_id, entry_id).
create function write_entries(
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
                label text, target_entry_id text
            ),
            unnest(p_bodies)
        ) as given (
            entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label, target_entry_id, body
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
            writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body
        ) values (
            head.tenant_id, head.session_id, head.seq, item.entry_id, coalesce(nullif(item.parent_entry_id, ''), head.newest_entry_id), item.kind,
            item.role, item.token_count, item.calls,
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
    where tenant_id = head.tenant_id and session_id = head.session_id;
    return head;
end
$$;

-- Checks the tenant's settings, then the key, then the claim, then the entries that others refer to, and writes. outcome is one of
--   SETTINGS_CHANGED (the entries were made ready under others than hold; settings_version and mask_secrets say which do), NOT_FOUND, KEY_REUSED, CLAIM_LOST (with the head as it is), TARGET_NOT_FOUND (missing_entry_id says which), REPLAYED, APPENDED.
-- The last two come with the first seq and the head right behind the entries, REPLAYED also with the ids that were stored. p_target_ids are all that
-- entries refer to, or null. p_run_id is empty for an unowned append.
-- Locks the transcript's row until commit. Indexes: the primary keys; entries (tenant_id, session_id, entry_id).
create function append_entries(
    p_tenant_id text, p_session_id text, p_key text, p_content_hash bytea, p_run_id text, p_epoch bigint, p_service text, p_client text,
    p_entries jsonb, p_bodies bytea[], p_settings_version bigint, p_target_ids text[],
    out outcome text, out incarnation text, out seq bigint, out chain_hash bytea, out writer_run_id text, out writer_epoch bigint,
    out first_seq bigint, out entry_ids text[], out missing_entry_id text, out settings_version bigint,
    out mask_secrets boolean
) language plpgsql as $$
declare
    head transcripts;
    earlier appends;
    tenant tenants;
begin
    select * into tenant from tenants t where t.tenant_id = p_tenant_id;
    if coalesce(tenant.settings_version, 0) <> p_settings_version then
        outcome := 'SETTINGS_CHANGED';
        settings_version := coalesce(tenant.settings_version, 0);
        mask_secrets := coalesce(tenant.mask_secrets, false);
        return;
    end if;
    select * into head from transcripts t where t.tenant_id = p_tenant_id and t.session_id = p_session_id for update;
    if not found or head.state <> 'LIVE' or tenant.is_purging then
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
        if p_target_ids is not null then
            select target_id into missing_entry_id
            from unnest(p_target_ids) as target_id
            where not exists (
                select from entries e
                where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.entry_id = target_id
            )
            limit 1;
        end if;
        if missing_entry_id is not null then
            outcome := 'TARGET_NOT_FOUND';
        else
            outcome := 'APPENDED';
            first_seq := head.seq + 1;
            head := write_entries(head, p_run_id, p_epoch, p_service, p_client, p_entries, p_bodies);
            insert into appends values (
                p_tenant_id, p_session_id, p_key, p_content_hash, first_seq, head.seq, head.writer_run_id, head.writer_epoch
            );
        end if;
    end if;
    seq := head.seq;
    chain_hash := head.chain_hash;
    writer_run_id := head.writer_run_id;
    writer_epoch := head.writer_epoch;
end
$$;
