-- Session files that are taken in.

-- IMPORTING -> LIVE -> DELETED. While it is IMPORTING nobody reads or writes it but the import.
alter table transcripts drop constraint transcripts_state_check;
alter table transcripts add constraint transcripts_state_check check (state in ('IMPORTING', 'LIVE', 'DELETED'));

-- How far each import is. IMPORTING -> COMPLETE, or IMPORTING -> ABORTED until what there is of it is removed, and then the row with it.
-- malformed has the lines that cannot be read, as a list of [line, what is wrong]; from the first on no entries are stored.
-- newest_source_id is the file's id of the entry read last; leaf_entry_id is where the branch ends that the file ends on; is_branched where the file
-- has any other.
create table imports (
    tenant_id        text        not null,
    session_id       text        not null,
    state            text        not null default 'IMPORTING' check (state in ('IMPORTING', 'COMPLETE', 'ABORTED')),
    byte_count       bigint      not null default 0,
    line_count       bigint      not null default 0,
    entry_count      bigint      not null default 0,
    malformed        jsonb       not null default '[]',
    newest_source_id text        not null default '',
    leaf_entry_id    text        not null default '',
    is_branched      boolean     not null default false,
    update_time      timestamptz not null default now(),
    primary key (tenant_id, session_id)
);
create index imports_stale_idx on imports (tenant_id, update_time) where state <> 'COMPLETE';
alter table imports enable row level security;
alter table imports force row level security;
create policy tenant on imports
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Puts entries behind the head and moves it. The caller has the transcript's row locked. p_entries is a JSON list with, for each body:
-- entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label, target_entry_id. The targets of labels must exist. An
-- empty parent is the entry before.
-- Cost: one insert for each entry, whatever the length of the transcript. Indexes: the primary keys; entries (tenant_id, session_id, entry_id).
create or replace function write_entries(
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
            p_tenant_id, p_session_id, head.seq, item.entry_id, coalesce(nullif(item.parent_entry_id, ''), head.newest_entry_id), item.kind,
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
    where tenant_id = p_tenant_id and session_id = p_session_id;
    return head;
end
$$;
