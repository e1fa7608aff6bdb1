-- Appending so that several calls can share a transaction. The function of this name without p_waits stays, for replicas of the version before.

-- Checks the tenant's settings, then the key, then the claim, then the entries that others refer to, and writes. outcome is one of
--   SETTINGS_CHANGED (the entries were made ready under others than hold; settings_version and mask_secrets say which do), NOT_FOUND, KEY_REUSED,
--   CLAIM_LOST (with the head as it is), TARGET_NOT_FOUND (missing_entry_id says which), REPLAYED, APPENDED,
--   BUSY (without p_waits: another transaction has the transcript's row, or there is no such row; nothing is known and nothing was done).
-- REPLAYED and APPENDED come with the first seq and the head right behind the entries, REPLAYED also with the ids that were stored. p_target_ids are all
-- that entries refer to, or null. p_run_id is empty for an unowned append. Whatever the outcome, the transaction can go on.
-- Locks the transcript's row until commit, and waits for it with p_waits alone: calls that share a transaction and do not wait can neither deadlock nor
-- hold up each other. Indexes: the primary keys; entries (tenant_id, session_id, entry_id).
create function append_entries(
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
        where not exists (
            select from entries e
            where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.entry_id = target_id
        )
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
            select array_agg(e.entry_id order by e.seq), (array_agg(e.chain_hash order by e.seq desc))[1]
            into entry_ids, chain_hash
            from entries e
            where e.tenant_id = p_tenant_id and e.session_id = p_session_id and e.seq between earlier.first_seq and earlier.last_seq;
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
