-- Appending at the price of its rows: all calls of a transaction go through one function, their bodies come as one value, and what a row may hold is checked by the
-- function that writes it. A table's own checks are read anew from the catalog's text with every insert, which took a tenth of the server's time for an append.
-- The functions of the version before, which take bodies as an array, stay for its replicas; the one of the version before that goes.

drop function append_entries(text, text, text, bytea, text, bigint, text, text, jsonb, bytea[], bigint, text[]);

alter table entries
    drop constraint entries_kind_check,
    drop constraint entries_role_check,
    drop constraint entries_label_check,
    drop constraint entries_check;
alter table transcripts drop constraint transcripts_state_check;

-- What `write_entries` and `append_together` are given, as JSON. An element is read by an expression, which costs a fraction of a query for each list.
create type given_entry as (
    entry_id text, kind text, token_count integer, token_vocabulary text, body_size integer, parent_entry_id text, role text, calls text[], answers text,
    is_synthetic boolean, label text, target_entry_id text
);
create type given_append as (
    session_id text, idempotency_key text, content_hash text, run_id text, epoch bigint, service text, client text, entries jsonb, entry_count integer,
    first_byte integer, settings_version bigint, target_ids text[]
);

-- Puts entries behind the head and moves it. The caller has the transcript's row locked, and hands it in. p_entries is a JSON list of `given_entry`, in
-- which may be missing what is empty. The bodies stand one behind the other in p_bodies, the first of them at p_first_byte, from 1. The targets of labels must exist. An empty
-- parent is the entry before. Raises check_violation for what no entry may be.
-- Cost: one insert for each entry, whatever the length of the transcript. Indexes: the primary keys; those of `find_target`.
create function write_entries(
    head transcripts, p_run_id text, p_epoch bigint, p_service text, p_client text, p_entries jsonb, p_bodies bytea, p_first_byte integer
) returns transcripts language plpgsql as $$
declare
    item given_entry;
    target record;
    target_seq bigint;
    first_byte integer := p_first_byte;
    moment timestamptz := clock_timestamp();
    body bytea;
begin
    for number in 0 .. jsonb_array_length(p_entries) - 1 loop
        item := jsonb_populate_record(null::given_entry, p_entries -> number);
        if item.kind not in ('HEADER', 'MESSAGE', 'NOTE', 'LABEL', 'MODEL_CHANGE', 'COMPACTION', 'BRANCH_SUMMARY', 'CUSTOM', 'OPAQUE', 'MIRROR')
            or item.role not in ('USER', 'ASSISTANT', 'TOOL_RESULT', 'BASH_EXECUTION', 'CUSTOM') or item.label not in ('SUPERSEDED', 'FINAL')
        then
            raise check_violation using message = format('no entry is of kind %L, role %L and label %L', item.kind, item.role, item.label);
        end if;
        target_seq := null;
        if item.label is not null then
            select * into strict target from find_target(head.tenant_id, head.session_id, item.target_entry_id);
            target_seq := target.seq;
            if item.label = 'SUPERSEDED' and target.kind in ('MESSAGE', 'NOTE') and not target.is_superseded then
                head.superseded_turn_count := head.superseded_turn_count + 1;
            end if;
        end if;
        body := substring(p_bodies from first_byte for item.body_size);
        first_byte := first_byte + item.body_size;
        head.seq := head.seq + 1;
        head.chain_hash := sha256(head.chain_hash || body);
        insert into entries (
            tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label, target_seq,
            writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body, token_vocabulary
        ) values (
            head.tenant_id, head.session_id, head.seq, item.entry_id, coalesce(item.parent_entry_id, head.newest_entry_id), item.kind,
            coalesce(item.role, ''), item.token_count, coalesce(item.calls, '{}'), coalesce(item.answers, ''), coalesce(item.is_synthetic, false),
            coalesce(item.label, ''), target_seq, p_run_id, p_epoch, p_service, p_client, moment, head.chain_hash, body, item.token_vocabulary
        );
        head.newest_entry_id := item.entry_id;
        head.token_count := head.token_count + item.token_count;
        head.logical_bytes := head.logical_bytes + item.body_size;
        if item.kind in ('MESSAGE', 'NOTE') then
            head.turn_count := head.turn_count + 1;
        end if;
    end loop;
    if octet_length(p_bodies) < first_byte - 1 then
        raise check_violation using message = 'there are fewer bytes of bodies than their sizes say';
    end if;
    update transcripts set
        seq = head.seq, chain_hash = head.chain_hash, newest_entry_id = head.newest_entry_id, token_count = head.token_count,
        logical_bytes = head.logical_bytes, turn_count = head.turn_count, superseded_turn_count = head.superseded_turn_count
    where tenant_id = head.tenant_id and session_id = head.session_id;
    return head;
end
$$;

-- Makes each of the calls, a JSON list of `given_append`: content_hash is in hex, run_id and epoch are those of the claim that it is made under (neither for an
-- unowned append), first_byte is that of its bodies among all, and target_ids are all that its entries refer to, or null. Checks the tenant's settings, then the
-- key, then the claim, then what entries refer to, and writes. One row for each call, in their order, whose outcome is one of
--   SETTINGS_CHANGED (the entries were made ready under others than hold; settings_version and mask_secrets say which do), NOT_FOUND, KEY_REUSED,
--   CLAIM_LOST (with the head as it is), TARGET_NOT_FOUND (missing_entry_id says which), REPLAYED, APPENDED,
--   BUSY (without p_waits: another transaction has the transcript's row, or there is no such row; nothing is known and nothing was done).
-- REPLAYED and APPENDED come with the first seq and the head right behind the entries, REPLAYED also with the ids that were stored. Whatever the outcome, the
-- transaction can go on.
-- Locks each transcript's row until commit, and waits for it with p_waits alone: calls that share a transaction and do not wait can neither deadlock nor hold up
-- each other. Indexes: the primary keys; those of `find_target` and `find_appended`.
create function append_together(p_tenant_id text, p_calls jsonb, p_bodies bytea, p_waits boolean)
returns table (
    outcome text, incarnation text, seq bigint, chain_hash bytea, writer_run_id text, writer_epoch bigint, first_seq bigint, entry_ids text[],
    missing_entry_id text, settings_version bigint, mask_secrets boolean
) language plpgsql as $$
declare
    call given_append;
    head transcripts;
    earlier appends;
    tenant tenants;
begin
    select * into tenant from tenants t where t.tenant_id = p_tenant_id;
    for number in 0 .. jsonb_array_length(p_calls) - 1 loop
        call := jsonb_populate_record(null::given_append, p_calls -> number);
        if number > 0 then -- They are the row of the call before.
            outcome := null;
            incarnation := null;
            seq := null;
            chain_hash := null;
            writer_run_id := null;
            writer_epoch := null;
            first_seq := null;
            entry_ids := null;
            missing_entry_id := null;
            settings_version := null;
            mask_secrets := null;
        end if;
        if coalesce(tenant.settings_version, 0) <> call.settings_version then
            outcome := 'SETTINGS_CHANGED';
            settings_version := coalesce(tenant.settings_version, 0);
            mask_secrets := coalesce(tenant.mask_secrets, false);
            return next;
            continue;
        end if;
        if p_waits then
            select * into head from transcripts t where t.tenant_id = p_tenant_id and t.session_id = call.session_id for update;
        else
            select * into head from transcripts t where t.tenant_id = p_tenant_id and t.session_id = call.session_id for update skip locked;
            if not found then
                outcome := 'BUSY';
                return next;
                continue;
            end if;
        end if;
        if not found or head.state <> 'LIVE' or tenant.is_purging then
            outcome := 'NOT_FOUND';
            return next;
            continue;
        end if;
        incarnation := head.incarnation;
        if call.run_id <> '' and (head.writer_run_id <> call.run_id or head.writer_epoch <> call.epoch) then
            outcome := 'CLAIM_LOST';
        elsif call.target_ids is not null then
            select target_id into missing_entry_id
            from unnest(call.target_ids) as target_id
            where not exists (select from find_target(p_tenant_id, call.session_id, target_id))
            limit 1;
            if found then
                outcome := 'TARGET_NOT_FOUND';
            end if;
        end if;
        if outcome is null then
            insert into appends values (
                p_tenant_id, call.session_id, call.idempotency_key, decode(call.content_hash, 'hex'), head.seq + 1, head.seq + call.entry_count,
                head.writer_run_id, head.writer_epoch
            )
            on conflict do nothing;
            if found then
                outcome := 'APPENDED';
                first_seq := head.seq + 1;
                head := write_entries(head, call.run_id, call.epoch, call.service, call.client, call.entries, p_bodies, call.first_byte);
            end if;
        end if;
        if outcome is distinct from 'APPENDED' then -- A key that was used comes before any other refusal.
            select * into earlier from appends a
            where a.tenant_id = p_tenant_id and a.session_id = call.session_id and a.idempotency_key = call.idempotency_key;
            if found then
                missing_entry_id := null;
                if earlier.content_hash <> decode(call.content_hash, 'hex') then
                    outcome := 'KEY_REUSED';
                    return next;
                    continue;
                end if;
                outcome := 'REPLAYED';
                first_seq := earlier.first_seq;
                seq := earlier.last_seq;
                writer_run_id := earlier.writer_run_id;
                writer_epoch := earlier.writer_epoch;
                select appended.entry_ids, appended.chain_hash into entry_ids, chain_hash
                from find_appended(p_tenant_id, call.session_id, earlier.first_seq, earlier.last_seq) as appended;
                return next;
                continue;
            end if;
        end if;
        seq := head.seq;
        chain_hash := head.chain_hash;
        writer_run_id := head.writer_run_id;
        writer_epoch := head.writer_epoch;
        return next;
    end loop;
end
$$;
