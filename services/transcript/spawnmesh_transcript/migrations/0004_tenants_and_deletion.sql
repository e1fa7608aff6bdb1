-- Tenants' settings, transcripts that are gone for good, families, and the removal of all that a tenant has.

-- One row for each tenant that was made ready. While is_purging, nothing of the tenant is read or written and nothing begins.
create table tenants (
    tenant_id        text    not null primary key,
    settings_version bigint  not null,
    mask_secrets     boolean not null,
    is_purging       boolean not null default false
);
alter table tenants enable row level security;
alter table tenants force row level security;
create policy tenant on tenants
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- LIVE -> DELETED, which is terminal: the row stays, with nothing but its ids, so that a creation that comes late finds it.
-- parent_session_id: who spawned it; it is kept with a deleted one, so that its own children stay in the family.
alter table transcripts
    add column state             text not null default 'LIVE' check (state in ('LIVE', 'DELETED')),
    add column parent_session_id text not null default '';
create index transcripts_parent_idx on transcripts (tenant_id, parent_session_id) where parent_session_id <> '';

-- Index: tenants primary key.
create function is_purged(p_tenant_id text) returns boolean language sql stable as $$
    select exists (select from tenants where tenant_id = p_tenant_id and is_purging);
$$;

-- Keeps a purge of the tenant from beginning until the transaction ends, and says whether one has begun: what it waits for is seen.
create function enter_tenant(p_tenant_id text) returns boolean language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock_shared(hashtextextended('transcripts of ' || p_tenant_id, 0));
    return not is_purged(p_tenant_id);
end
$$;

drop function append_entries(text, text, text, bytea, text, bigint, text, text, jsonb, bytea[]);

-- Checks the tenant's settings, then the key, then the claim, then the entries that others refer to, and writes. outcome is one of
--   SETTINGS_CHANGED (the entries were made ready under others than hold; settings_version and mask_secrets say which do), NOT_FOUND, KEY_REUSED, CLAIM_LOST (with the head as it is), TARGET_NOT_FOUND (missing_entry_id says which), REPLAYED, APPENDED.
-- The last two come with the ids that were stored, the first seq, and the head right behind them. p_run_id is empty for an unowned append.
-- Locks the transcript's row until commit. Indexes: the primary keys; entries (tenant_id, session_id, entry_id).
create function append_entries(
    p_tenant_id text, p_session_id text, p_key text, p_content_hash bytea, p_run_id text, p_epoch bigint, p_service text, p_client text,
    p_entries jsonb, p_bodies bytea[], p_settings_version bigint,
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
create or replace function scan_window(p_tenant_id text, p_session_id text, p_from_seq bigint, p_row_count integer, p_max_bytes bigint)
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
    where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.state = 'LIVE' and not is_purged(p_tenant_id);
end
$$;
