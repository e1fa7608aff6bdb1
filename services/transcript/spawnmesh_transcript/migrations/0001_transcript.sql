-- The schema of the transcript service: its tables first, then its functions.
--
-- Each key begins with tenant_id. Row-level security shows a transaction only the rows of the
-- tenant in `spawnmesh.tenant`, which the transaction sets first.
--
-- Contents
--   Tables of tenants
--     tenants, purged_tenants
--   Tables of transcripts
--     transcripts, entries, appends, imports
--   Tables of the stub tier
--     payloads, stubs
--   Tables of compaction
--     summaries
--   Tables of search
--     search_progress, search_pieces
--   Tables of activities
--     activity_heads, activities
--   Row-level security
--   Functions of tenants
--     tenant_is_purging, enter_tenant
--   Functions of appends
--     entry_input, append_input, find_target, find_appended, write_entries, append_entries,
--     append_plain
--   Functions of creation, writer claims and prompt windows
--     begin_transcript, acquire_writer, release_writer, scan_window
--   Functions of token counts
--     recount_entries
--   Functions of deletion in pages
--     delete_rows_at
--   Functions of activities
--     lock_activities, record_activities, delete_activities
--   Functions of the stub tier
--     find_payloads, lock_payloads, lock_for_payload_move, record_payloads, drop_inline_payloads,
--     restore_inline_payloads

-- -------------------------------------------------------------------------------------------------
-- Tables of tenants
-- -------------------------------------------------------------------------------------------------

-- One row for each prepared tenant: its settings.
create table tenants (
    tenant_id                text        not null,
    settings_version         bigint      not null, -- An older or equal version changes nothing.
    mask_secrets             boolean     not null,
    stub_large_tool_payloads boolean     not null default false,
    large_payload_bytes      integer     not null default 8000,
    token_vocabulary         text        not null default 'o200k_base',
    compact_at_percent       integer     not null default 0,
    work_time                timestamptz, -- When a worker last claimed the tenant.
    -- Where a worker continues to verify: in this transcript behind verified_seq, or behind this
    -- transcript if verified_seq is 0.
    verified_session_id      text        not null default '',
    verified_incarnation     text        not null default '',
    verified_seq             bigint      not null default 0,
    verified_chain_hash      bytea       not null default ''::bytea,
    primary key (tenant_id)
);

-- Tenants that are purged, or were. Nothing of them is read or written, and no write begins, until
-- they are created again. See `spawnmesh_postgres.tenant_purges`.
create table purged_tenants (
    tenant_id        text        not null primary key,
    settings_version bigint      not null, -- The newest settings of the purged tenant, or 0.
    begin_time       timestamptz not null default now(),
    end_time         timestamptz -- When nothing of the tenant was left.
);

-- -------------------------------------------------------------------------------------------------
-- Tables of transcripts
-- -------------------------------------------------------------------------------------------------

-- One row for each transcript: its head, its writer and its totals. The lock of this row orders all
-- writers of the transcript.
--
-- State: IMPORTING -> LIVE -> DELETED, or LIVE -> DELETED. DELETED is terminal; the row stays
-- with its ids alone, so that a late creation finds it. Only the import reads and writes an
-- IMPORTING transcript.
--
-- transcripts and entries have no CHECK constraints. PostgreSQL parses a constraint's text again
-- for each insert, which took a tenth of the server's time for an append. `write_entries` and
-- `append_plain` check kind, role and label instead.
create table transcripts (
    tenant_id              text        not null,
    session_id             text        not null,
    state                  text        not null default 'LIVE',
    incarnation            text        not null, -- New with each creation of the same session.
    forked_from_session_id text        not null, -- Empty if the transcript is no fork.
    parent_session_id      text        not null default '', -- A deleted row keeps it for its children.
    -- The head: the newest entry, and its chain hash.
    seq                    bigint      not null default 0,
    chain_hash             bytea       not null default ''::bytea,
    newest_entry_id        text        not null default '',
    -- The current writer claim; writer_run_id is empty after its release. writer_epoch never
    -- decreases.
    writer_run_id          text        not null default '',
    writer_epoch           bigint      not null default 0,
    -- Totals over all entries. A turn is a message or a note.
    turn_count             bigint      not null default 0,
    superseded_turn_count  bigint      not null default 0,
    token_count            bigint      not null default 0,
    logical_bytes          bigint      not null default 0, -- Of all bodies as they were appended.
    dropped_bytes          bigint      not null default 0, -- Of those, the bytes no longer in `entries`.
    -- The head at the time when a worker last dropped every inline payload that it may drop.
    inline_dropped_seq     bigint      not null default 0,
    create_time            timestamptz not null default now(),
    primary key (tenant_id, session_id)
) with (fillfactor = 70); -- Each append updates the row; free space in the page keeps updates off the index.

-- Serves `list_family`: the children of a session.
create index transcripts_parent_idx on transcripts (tenant_id, parent_session_id)
    where parent_session_id <> '';

-- One row for each entry, written once. Later changes: the body may lose payloads that the blob
-- store holds (dropped_bytes), and tokens may be recounted (token_count, token_vocabulary).
-- Context selection reads role, token_count, calls, answers and target_seq here and opens no
-- body.
create table entries (
    tenant_id        text        not null,
    session_id       text        not null,
    seq              bigint      not null, -- Dense, from 1.
    entry_id         text        not null,
    parent_entry_id  text        not null,
    -- HEADER, MESSAGE, NOTE, LABEL, MODEL_CHANGE, COMPACTION, BRANCH_SUMMARY, CUSTOM, OPAQUE or
    -- MIRROR.
    kind             text        not null,
    role             text        not null, -- Of a message or mirror; otherwise empty.
    token_count      integer     not null,
    calls            text[]      not null, -- Ids of the tool calls in the entry.
    answers          text        not null, -- Id of the tool call that the entry answers, or empty.
    is_synthetic     boolean     not null,
    label            text        not null, -- SUPERSEDED, FINAL or empty.
    target_seq       bigint, -- The entry that the label marks; null without a label.
    -- The writer: a run with its epoch, a service or a client.
    writer_run_id    text        not null,
    writer_epoch     bigint      not null,
    writer_service   text        not null,
    writer_client    text        not null,
    create_time      timestamptz not null,
    -- sha256 over the previous chain_hash, the ids, the writer, the time, and the body as it was
    -- appended: see domain/chain.py. kind, role, calls, answers, is_synthetic, label and target_seq
    -- follow from the body.
    chain_hash       bytea       not null,
    body             bytea       not null,
    -- The bytes that the stored body lacks, because payloads of it are in the blob store only; 0
    -- for a complete body. chain_hash and token_count always belong to the complete body.
    dropped_bytes    integer     not null default 0,
    token_vocabulary text        not null default 'o200k_base', -- The vocabulary of token_count.
    primary key (tenant_id, session_id, seq),
    unique (tenant_id, session_id, entry_id)
);

-- Serves `read_newest_user_turn`.
create index entries_user_idx on entries (tenant_id, session_id, seq) where role = 'USER';
-- Serves every query that leaves superseded entries out.
create index entries_superseded_idx on entries (tenant_id, session_id, target_seq)
    where label = 'SUPERSEDED';

-- One row for each idempotency key: which entries it appended, and the claim that they were made
-- under.
create table appends (
    tenant_id       text   not null,
    session_id      text   not null,
    idempotency_key text   not null,
    content_hash    bytea  not null,
    first_seq       bigint not null,
    last_seq        bigint not null,
    writer_run_id   text   not null,
    writer_epoch    bigint not null,
    primary key (tenant_id, session_id, idempotency_key)
);

-- One row for each import of a session file: its progress. State: IMPORTING -> COMPLETE, or
-- IMPORTING -> ABORTED. The row of an aborted import is deleted after its transcript's rows.
create table imports (
    tenant_id        text        not null,
    session_id       text        not null,
    state            text        not null default 'IMPORTING',
    byte_count       bigint      not null default 0,
    line_count       bigint      not null default 0,
    entry_count      bigint      not null default 0,
    -- Unreadable lines, as a list of [line, error]. From the first one on, no entry is stored.
    malformed        jsonb       not null default '[]',
    newest_source_id text        not null default '', -- The file's own id of the newest entry read.
    leaf_entry_id    text        not null default '', -- The end of the branch on which the file ends.
    is_branched      boolean     not null default false, -- The file has other branches.
    -- Hash chain over the first byte_count bytes of the file. It refuses another file on resume.
    line_chain       bytea       not null default decode(repeat('00', 32), 'hex'),
    dialect          text        not null default '', -- Of the file; empty before its first line.
    memory           jsonb       not null default '{}', -- See domain/dialects/reading.py: FileMemory.
    -- The newest compactions of the agent, oldest first.
    compaction_ids   text[]      not null default '{}',
    update_time      timestamptz not null default now(),
    primary key (tenant_id, session_id),
    check (state in ('IMPORTING', 'COMPLETE', 'ABORTED'))
);

-- Serves `list_stale_imports`.
create index imports_stale_idx on imports (tenant_id, update_time) where state <> 'COMPLETE';

-- -------------------------------------------------------------------------------------------------
-- Tables of the stub tier
-- -------------------------------------------------------------------------------------------------

-- One row for each text or image that is a file in the blob store. The row is written before the
-- blob and deleted after it, so every blob has a row.
create table payloads (
    tenant_id    text    not null,
    blob_id      text    not null,
    session_id   text    not null,
    seq          bigint  not null,
    block_index  integer not null,
    tool_name    text    not null,
    about        text    not null, -- One line that describes the output; see domain/stub_text.py.
    mime_type    text    not null,
    size_bytes   bigint  not null,
    line_count   bigint  not null,
    sha256       text    not null,
    is_stored    boolean not null default false, -- The blob store is known to have the blob.
    is_inline    boolean not null default true, -- The stored body of the entry has the payload as well.
    -- The entry is complete again and has no stub: the blob must be released, then the row is
    -- deleted. Readers ignore the row.
    is_releasing boolean not null default false,
    primary key (tenant_id, blob_id)
);

-- Serves the lookups of an entry's payloads.
create index payloads_session_idx on payloads (tenant_id, session_id, seq, block_index);
-- Serves `list_unstored_payloads`.
create index payloads_unstored_idx on payloads (tenant_id, session_id) where not is_stored;
-- Serves `list_inline_entries` and `list_transcripts_with_inline_payloads`.
create index payloads_inline_idx on payloads (tenant_id, session_id, seq)
    where is_inline and not is_releasing;
-- Serves `list_releasing_payloads`.
create index payloads_releasing_idx on payloads (tenant_id, session_id) where is_releasing;

-- One row for each entry that a context may show by reference: the whole body with references in
-- it, and its token count. The body never changes, so a context is the same from turn to turn. A
-- row with a file_id is a condensed message: it serves only contexts that the transcript does not
-- fit, and its files are in the entry itself.
create table stubs (
    tenant_id            text    not null,
    session_id           text    not null,
    seq                  bigint  not null,
    token_count          integer not null,
    body                 bytea   not null,
    is_stored            boolean not null default false, -- The blob store has all payloads of the entry.
    -- The beginning of the ids of a condensed message's files, otherwise empty.
    file_id              text    not null default '',
    thinking_token_count integer not null default 0, -- Of thinking in the body that can be left out.
    primary key (tenant_id, session_id, seq)
);

-- Serves `read_condensed_entry`.
create unique index stubs_file_idx on stubs (tenant_id, file_id) where file_id <> '';

-- -------------------------------------------------------------------------------------------------
-- Tables of compaction
-- -------------------------------------------------------------------------------------------------

-- One row for each compaction; seq is the seq of its entry. The row with the highest seq is in
-- force: a context reads it in place of the entries up to last_source_seq.
create table summaries (
    tenant_id           text    not null,
    session_id          text    not null,
    seq                 bigint  not null,
    entry_id            text    not null,
    first_source_seq    bigint  not null,
    last_source_seq     bigint  not null,
    previous_seq        bigint, -- The summary that this one continues.
    source_entry_count  integer not null,
    source_token_count  bigint  not null,
    -- Over all messages and notes from the beginning up to last_source_seq, superseded ones
    -- included.
    covered_turn_count  bigint  not null,
    covered_token_count bigint  not null,
    token_count         integer not null, -- Of the text that a model reads.
    method              text    not null,
    model               text    not null,
    run_id              text    not null,
    is_published        boolean not null default false, -- Observers have been notified.
    primary key (tenant_id, session_id, seq),
    check (first_source_seq <= last_source_seq and last_source_seq < seq),
    -- IMPORTED: the agent whose session file was imported made it.
    check (method in ('NORMAL', 'AGGRESSIVE', 'EXCERPT', 'IMPORTED'))
);

-- Serves `list_unpublished_summaries`.
create index summaries_unpublished_idx on summaries (tenant_id) where not is_published;

-- -------------------------------------------------------------------------------------------------
-- Tables of search
-- -------------------------------------------------------------------------------------------------

-- How far each transcript is indexed. The first search of a transcript creates its index, and each
-- search extends it; an append pays nothing for it.
create table search_progress (
    tenant_id  text   not null,
    session_id text   not null,
    seq        bigint not null,
    primary key (tenant_id, session_id)
);

-- The words of each entry, in pieces small enough to keep the position of every word.
create table search_pieces (
    tenant_id  text     not null,
    session_id text     not null,
    seq        bigint   not null,
    piece      integer  not null,
    words      tsvector not null,
    primary key (tenant_id, session_id, seq, piece)
);

-- -------------------------------------------------------------------------------------------------
-- Tables of activities
-- -------------------------------------------------------------------------------------------------

-- The newest position of each tenant's activities. It never decreases, also when activities expire.
create table activity_heads (
    tenant_id text   not null,
    position  bigint not null,
    primary key (tenant_id)
);

-- What the service did with transcripts, for watchers, kept for some days.
create table activities (
    tenant_id   text        not null,
    position    bigint      not null,
    session_id  text        not null,
    create_time timestamptz not null,
    body        bytea       not null, -- An Activity message without position, session and time.
    primary key (tenant_id, position)
);

-- Serves `list_activities` of one session and `delete_activities`.
create index activities_session_idx on activities (tenant_id, session_id, position);
-- Serves `forget_activities`.
create index activities_time_idx on activities (tenant_id, create_time);

-- -------------------------------------------------------------------------------------------------
-- Row-level security
-- -------------------------------------------------------------------------------------------------

-- FORCE subjects the owner as well. A policy without WITH CHECK checks new rows by its USING
-- expression.
alter table tenants enable row level security;
alter table tenants force row level security;
create policy tenant on tenants using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table purged_tenants enable row level security;
alter table purged_tenants force row level security;
create policy tenant on purged_tenants using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table transcripts enable row level security;
alter table transcripts force row level security;
create policy tenant on transcripts using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table entries enable row level security;
alter table entries force row level security;
create policy tenant on entries using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table appends enable row level security;
alter table appends force row level security;
create policy tenant on appends using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table imports enable row level security;
alter table imports force row level security;
create policy tenant on imports using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table payloads enable row level security;
alter table payloads force row level security;
create policy tenant on payloads using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table stubs enable row level security;
alter table stubs force row level security;
create policy tenant on stubs using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table summaries enable row level security;
alter table summaries force row level security;
create policy tenant on summaries using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table search_progress enable row level security;
alter table search_progress force row level security;
create policy tenant on search_progress using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table search_pieces enable row level security;
alter table search_pieces force row level security;
create policy tenant on search_pieces using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table activity_heads enable row level security;
alter table activity_heads force row level security;
create policy tenant on activity_heads using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table activities enable row level security;
alter table activities force row level security;
create policy tenant on activities using (tenant_id = current_setting('spawnmesh.tenant', true));

-- A worker lists the tenants, and reads nothing else across tenants.
create policy every_tenant on tenants for select using (current_setting('spawnmesh.tenant', true) = '*');
create policy every_tenant on purged_tenants for select
    using (current_setting('spawnmesh.tenant', true) = '*');

-- =================================================================================================
-- Functions: appends
-- =================================================================================================

-- Functions that create a transcript, append to it and move its writer claim. Each is one round
-- trip: its statements see what other transactions committed before it locked the transcript's
-- row.
--
-- All functions run with the caller's rights, so row-level security holds inside them.
--
-- A lookup by a whole key is written as a range in the order of its index (`seq between x and x
-- order by seq`), in a function with enable_sort = off. While the planner has no statistics of a
-- tenant, it estimates one row and may otherwise choose any index that begins with tenant_id.

-- -------------------------------------------------------------------------------------------------
-- Functions of tenants
-- -------------------------------------------------------------------------------------------------

-- Returns true if the tenant is purged, or was, and is not prepared since. Index: purged_tenants
-- primary key.
create function tenant_is_purging(p_tenant_id text) returns boolean language sql stable as $$
    select exists (select from purged_tenants where tenant_id = p_tenant_id);
$$;

-- Takes a shared lock that keeps a purge of the tenant from beginning until the transaction ends,
-- and returns false if a purge has begun. Waits for a purge that is about to begin. The lock is the
-- one of `spawnmesh_postgres.tenant_purges`.
create function enter_tenant(p_tenant_id text) returns boolean language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock_shared(hashtextextended(current_schema() || ' rows of ' || p_tenant_id, 0));
    return not tenant_is_purging(p_tenant_id);
end
$$;

-- -------------------------------------------------------------------------------------------------
-- Functions of appends
-- -------------------------------------------------------------------------------------------------

-- One entry to write. Empty values may be missing in the JSON: an entry without parent_entry_id has
-- the entry before it as its parent.
create type entry_input as (
    entry_id         text,
    kind             text,
    token_count      integer,
    token_vocabulary text,
    body_size        integer, -- Bytes.
    parent_entry_id  text,
    role             text,
    calls            text[],
    answers          text,
    is_synthetic     boolean,
    label            text,
    target_entry_id  text -- The entry that the label marks.
);

-- One call of AppendEntries.
create type append_input as (
    session_id       text,
    idempotency_key  text,
    content_hash     text, -- In hex.
    run_id           text, -- Of the writer claim; empty for an unowned append.
    epoch            bigint, -- Of the writer claim.
    service          text,
    client           text,
    entries          jsonb, -- A list of entry_input.
    entry_count      integer,
    first_byte       integer, -- Where its bodies begin among the bodies of all calls, from 1.
    settings_version bigint, -- The tenant's settings under which the entries were prepared.
    target_ids       text[] -- The ids of all entries that its entries refer to, or null.
);

-- Returns an entry by its id, and whether it is superseded; no row if there is no such entry.
-- Sees rows that its caller has just written.
-- Indexes: entries (tenant_id, session_id, entry_id), entries_superseded_idx.
create function find_target(p_tenant_id text, p_session_id text, p_entry_id text)
returns table (seq bigint, kind text, is_superseded boolean) language plpgsql volatile
set enable_sort = off as $$
begin
    select e.seq, e.kind into seq, kind
    from entries e
    where e.tenant_id = p_tenant_id and e.session_id = p_session_id
        and e.entry_id between p_entry_id and p_entry_id
    order by e.entry_id
    limit 1;
    if not found then
        return;
    end if;
    perform from entries e
    where e.tenant_id = p_tenant_id and e.session_id = p_session_id
        and e.target_seq between find_target.seq and find_target.seq and e.label = 'SUPERSEDED'
    order by e.target_seq
    limit 1;
    is_superseded := found;
    return next;
end
$$;

-- Returns the ids of the entries between two seqs, and the chain hash of the last.
-- Index: entries primary key.
create function find_appended(
    p_tenant_id text, p_session_id text, p_first_seq bigint, p_last_seq bigint,
    out entry_ids text[], out chain_hash bytea
) language plpgsql volatile set enable_sort = off as $$
begin
    select array_agg(stored.entry_id), (array_agg(stored.chain_hash))[count(*)::integer]
    into entry_ids, chain_hash
    from (
        select e.entry_id, e.chain_hash
        from entries e
        where e.tenant_id = p_tenant_id and e.session_id = p_session_id
            and e.seq between p_first_seq and p_last_seq
        order by e.seq
    ) as stored;
end
$$;

-- Writes entries behind the head, moves the head, and returns the transcript's row. The caller
-- has locked the row and passes it. p_entries is a list of entry_input, whose label targets
-- exist. p_bodies holds the bodies one behind the other, from p_first_byte (the first byte is 1).
-- Raises check_violation for an unknown kind, role or label, and for fewer bytes than the sizes
-- say. Cost: one insert for each entry, independent of the transcript's length. Indexes: the
-- primary keys; those of `find_target`.
create function write_entries(
    head transcripts, p_run_id text, p_epoch bigint, p_service text, p_client text, p_entries jsonb,
    p_bodies bytea, p_first_byte integer
) returns transcripts language plpgsql volatile as $$
declare
    item entry_input;
    target record;
    target_seq bigint;
    first_byte integer := p_first_byte;
    moment timestamptz := clock_timestamp();
    parent_id text;
    body bytea;
begin
    for number in 0 .. jsonb_array_length(p_entries) - 1 loop
        item := jsonb_populate_record(null::entry_input, p_entries -> number);
        if item.kind not in (
                'HEADER', 'MESSAGE', 'NOTE', 'LABEL', 'MODEL_CHANGE', 'COMPACTION', 'BRANCH_SUMMARY',
                'CUSTOM', 'OPAQUE', 'MIRROR'
            )
            or item.role not in ('USER', 'ASSISTANT', 'TOOL_RESULT', 'BASH_EXECUTION', 'CUSTOM')
            or item.label not in ('SUPERSEDED', 'FINAL')
        then
            raise check_violation using message = format(
                'no entry is of kind %L, role %L and label %L', item.kind, item.role, item.label
            );
        end if;
        target_seq := null;
        if item.label is not null then
            select * into strict target
            from find_target(head.tenant_id, head.session_id, item.target_entry_id);
            target_seq := target.seq;
            if item.label = 'SUPERSEDED' and not target.is_superseded and target.kind in ('MESSAGE', 'NOTE')
            then
                head.superseded_turn_count := head.superseded_turn_count + 1;
            end if;
        end if;
        body := substring(p_bodies from first_byte for item.body_size);
        first_byte := first_byte + item.body_size;
        head.seq := head.seq + 1;
        parent_id := coalesce(item.parent_entry_id, head.newest_entry_id);
        head.chain_hash := sha256(
            head.chain_hash || convert_to(concat_ws(
                E'\n', item.entry_id, parent_id, p_run_id, p_epoch, p_service,
                (extract(epoch from moment) * 1000000)::bigint, octet_length(p_client), p_client, ''
            ), 'UTF8') || body
        );
        insert into entries (
            tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers,
            is_synthetic, label, target_seq, writer_run_id, writer_epoch, writer_service, writer_client,
            create_time, chain_hash, body, token_vocabulary
        ) values (
            head.tenant_id, head.session_id, head.seq, item.entry_id, parent_id, item.kind,
            coalesce(item.role, ''), item.token_count, coalesce(item.calls, '{}'), coalesce(item.answers, ''),
            coalesce(item.is_synthetic, false), coalesce(item.label, ''), target_seq, p_run_id, p_epoch,
            p_service, p_client, moment, head.chain_hash, body, item.token_vocabulary
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
        seq = head.seq, chain_hash = head.chain_hash, newest_entry_id = head.newest_entry_id,
        token_count = head.token_count, logical_bytes = head.logical_bytes, turn_count = head.turn_count,
        superseded_turn_count = head.superseded_turn_count
    where tenant_id = head.tenant_id and session_id = head.session_id;
    return head;
end
$$;

-- Makes the appends of p_calls, a list of append_input, one after the other. For each it checks the
-- tenant's settings, the idempotency key, the claim and the targets, and then writes.
-- Returns one row for each call, in their order. Its outcome is one of:
--   SETTINGS_CHANGED  The entries were prepared under other settings than those in force.
--   NOT_FOUND         The transcript cannot be written.
--   KEY_REUSED        The key was used with other content.
--   CLAIM_LOST        The claim is not the current one. The row gives the head.
--   TARGET_NOT_FOUND  missing_entry_id does not exist. The row gives the head.
--   REPLAYED          The key was used with the same content. The row gives what it appended.
--   APPENDED          The row gives the first seq and the new head.
--   BUSY              Without p_waits only: another transaction holds the transcript's row, or it
--                     does not exist. Nothing was checked or written.
-- After every outcome the transaction can continue. Locks each transcript's row until commit, and
-- waits for it only with p_waits. Transactions that do not wait cannot deadlock. Indexes: the
-- primary keys; those of `find_target` and `find_appended`.
create function append_entries(p_tenant_id text, p_calls jsonb, p_bodies bytea, p_waits boolean)
returns table (
    outcome text, incarnation text, seq bigint, chain_hash bytea, writer_run_id text, writer_epoch bigint,
    first_seq bigint, entry_ids text[], missing_entry_id text
) language plpgsql volatile as $$
declare
    call append_input;
    head transcripts;
    earlier appends;
    tenant tenants;
begin
    select * into tenant from tenants t where t.tenant_id = p_tenant_id;
    for number in 0 .. jsonb_array_length(p_calls) - 1 loop
        call := jsonb_populate_record(null::append_input, p_calls -> number);
        if number > 0 then -- The output columns still hold the row of the previous call.
            outcome := null;
            incarnation := null;
            seq := null;
            chain_hash := null;
            writer_run_id := null;
            writer_epoch := null;
            first_seq := null;
            entry_ids := null;
            missing_entry_id := null;
        end if;
        if coalesce(tenant.settings_version, 0) <> call.settings_version then
            outcome := 'SETTINGS_CHANGED';
            return next;
            continue;
        end if;
        if p_waits then
            select * into head
            from transcripts t
            where t.tenant_id = p_tenant_id and t.session_id = call.session_id
            for update;
        else
            select * into head
            from transcripts t
            where t.tenant_id = p_tenant_id and t.session_id = call.session_id
            for update skip locked;
            if not found then
                outcome := 'BUSY';
                return next;
                continue;
            end if;
        end if;
        if not found or head.state <> 'LIVE' or tenant_is_purging(p_tenant_id) then
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
                p_tenant_id, call.session_id, call.idempotency_key, decode(call.content_hash, 'hex'),
                head.seq + 1, head.seq + call.entry_count, head.writer_run_id, head.writer_epoch
            )
            on conflict do nothing;
            if found then
                outcome := 'APPENDED';
                first_seq := head.seq + 1;
                head := write_entries(
                    head, call.run_id, call.epoch, call.service, call.client, call.entries, p_bodies,
                    call.first_byte
                );
            end if;
        end if;
        if outcome is distinct from 'APPENDED' then -- A used key takes precedence over every refusal.
            select * into earlier from appends a
            where a.tenant_id = p_tenant_id and a.session_id = call.session_id
                and a.idempotency_key = call.idempotency_key;
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
                from find_appended(
                    p_tenant_id, call.session_id, earlier.first_seq, earlier.last_seq
                ) as appended;
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

-- Makes appends of one entry that has no label and refers to no other entry, as nearly all
-- appends are. It is one statement for all calls: PL/pgSQL prepares each expression of a function
-- again in every transaction, and `append_entries` has about sixty.
--
-- p_calls is a list of objects with the fields of append_input and entry_input that such an
-- append needs; empty values may be missing. Returns one row for each append made: the
-- transcript's head, whose seq is that of the entry. A call without a row left nothing behind;
-- `append_entries` tells the reason. Raises unique_violation, and writes nothing, if two calls
-- are for one transcript.
--
-- An append is complete or absent, because each step takes the rows of the one before: the
-- transcript's row as it is once it is locked, which may be newer than the statement's snapshot;
-- the key, if it is new; the entry; the head. The head moves by an insert that conflicts, since
-- that updates the newest version of the locked row and always finds it by the primary key. The
-- lateral lookup of each row always uses the primary key as well. Locks the rows of transcripts
-- that no other transaction holds until commit, and never waits. Indexes: the primary keys.
create function append_plain(p_tenant_id text, p_calls jsonb, p_bodies bytea)
returns table (
    session_id text, incarnation text, seq bigint, chain_hash bytea, writer_run_id text, writer_epoch bigint
) language plpgsql volatile as $$
#variable_conflict use_column
begin
    return query
    with given as (
        select call.*, substring(p_bodies from call.first_byte for call.body_size) as body
        from jsonb_to_recordset(p_calls) as call (
            session_id text, idempotency_key text, content_hash text, run_id text, epoch bigint, service text,
            client text, settings_version bigint, entry_id text, parent_entry_id text, kind text, role text,
            token_count integer, token_vocabulary text, calls text[], answers text, is_synthetic boolean,
            first_byte integer, body_size integer
        )
        left join tenants tn on tn.tenant_id = p_tenant_id
        where call.settings_version = coalesce(tn.settings_version, 0) and not tenant_is_purging(p_tenant_id)
            and call.kind in (
                'HEADER', 'MESSAGE', 'NOTE', 'LABEL', 'MODEL_CHANGE', 'COMPACTION', 'BRANCH_SUMMARY',
                'CUSTOM', 'OPAQUE', 'MIRROR'
            )
            and (
                call.role is null
                or call.role in ('USER', 'ASSISTANT', 'TOOL_RESULT', 'BASH_EXECUTION', 'CUSTOM')
            )
            and call.first_byte + call.body_size <= octet_length(p_bodies) + 1
    ), locked as (
        select g.*, t.seq + 1 as seq, t.chain_hash as previous_hash,
            coalesce(g.parent_entry_id, t.newest_entry_id) as parent_id, t.writer_run_id, t.writer_epoch,
            clock_timestamp() as moment
        from given g
        cross join lateral (
            select *
            from transcripts
            where tenant_id = p_tenant_id and session_id = g.session_id and state = 'LIVE'
                and (g.run_id = '' or (writer_run_id = g.run_id and writer_epoch = g.epoch))
            limit 1
            for update skip locked
        ) as t
    ), head as (
        select l.*, sha256(
            l.previous_hash || convert_to(concat_ws(
                E'\n', l.entry_id, l.parent_id, l.run_id, l.epoch, l.service,
                (extract(epoch from l.moment) * 1000000)::bigint, octet_length(l.client), l.client, ''
            ), 'UTF8') || l.body
        ) as chain_hash
        from locked l
    ), kept as (
        insert into appends (
            tenant_id, session_id, idempotency_key, content_hash, first_seq, last_seq, writer_run_id,
            writer_epoch
        )
        select p_tenant_id, h.session_id, h.idempotency_key, decode(h.content_hash, 'hex'), h.seq, h.seq,
            h.writer_run_id, h.writer_epoch
        from head h
        on conflict do nothing
        returning session_id
    ), entered as (
        insert into entries (
            tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers,
            is_synthetic, label, target_seq, writer_run_id, writer_epoch, writer_service, writer_client,
            create_time, chain_hash, body, token_vocabulary
        )
        select p_tenant_id, h.session_id, h.seq, h.entry_id, h.parent_id,
            h.kind, coalesce(h.role, ''), h.token_count, coalesce(h.calls, '{}'), coalesce(h.answers, ''),
            coalesce(h.is_synthetic, false), '', null, h.run_id, h.epoch, h.service, h.client,
            h.moment, h.chain_hash, h.body, h.token_vocabulary
        from head h
        join kept k on k.session_id = h.session_id
        returning session_id, seq, entry_id, chain_hash, token_count, octet_length(body) as body_size,
            (kind in ('MESSAGE', 'NOTE'))::integer as turn_count
    )
    insert into transcripts as t (
        tenant_id, session_id, incarnation, forked_from_session_id, seq, chain_hash, newest_entry_id,
        token_count, logical_bytes, turn_count
    )
    select p_tenant_id, e.session_id, '', '', e.seq, e.chain_hash, e.entry_id, e.token_count, e.body_size,
        e.turn_count
    from entered e
    on conflict (tenant_id, session_id) do update set
        seq = excluded.seq, chain_hash = excluded.chain_hash, newest_entry_id = excluded.newest_entry_id,
        token_count = t.token_count + excluded.token_count,
        logical_bytes = t.logical_bytes + excluded.logical_bytes,
        turn_count = t.turn_count + excluded.turn_count
    returning t.session_id, t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch;
end
$$;

-- =================================================================================================
-- Functions: creation, claims, windows, counts, deletion, activities
-- =================================================================================================

-- Functions on a transcript other than appends: creation, writer claim, prompt window, token
-- counts, deletion and activities. What is said above the functions for appends holds here as well.

-- -------------------------------------------------------------------------------------------------
-- Functions of creation, writer claims and prompt windows
-- -------------------------------------------------------------------------------------------------

-- Inserts a transcript that is no fork, with its first entries, and returns its head.
-- Returns no row, and writes nothing, if the tenant is being purged or the transcript exists in any
-- state, DELETED included. Keeps a purge of the tenant from beginning until the transaction ends.
-- Waits for a transaction that inserts or deletes the same transcript.
-- Indexes: tenants and transcripts primary keys; those of `write_entries`.
create function begin_transcript(
    p_tenant_id text, p_session_id text, p_incarnation text, p_parent_session_id text, p_service text,
    p_entries jsonb, p_bodies bytea
) returns table (
    incarnation text, seq bigint, chain_hash bytea, writer_run_id text, writer_epoch bigint
) language plpgsql volatile as $$
#variable_conflict use_column
declare
    head transcripts;
begin
    if not enter_tenant(p_tenant_id) then
        return;
    end if;
    insert into transcripts as t (
        tenant_id, session_id, incarnation, forked_from_session_id, parent_session_id
    )
    values (p_tenant_id, p_session_id, p_incarnation, '', p_parent_session_id)
    on conflict do nothing
    returning * into head;
    if not found then
        return;
    end if;
    return query
        select w.incarnation, w.seq, w.chain_hash, w.writer_run_id, w.writer_epoch
        from write_entries(head, '', 0, p_service, '', p_entries, p_bodies, 1) w;
end
$$;

-- Makes the claim the current one, unless a higher claim was made. Returns the head after that, and
-- whether the claim is held; no row if there is no transcript.
-- Locks the transcript's row. Index: transcripts primary key.
create function acquire_writer(p_tenant_id text, p_session_id text, p_run_id text, p_epoch bigint)
returns table (
    incarnation text, seq bigint, chain_hash bytea, writer_run_id text, writer_epoch bigint, is_held boolean
) language plpgsql volatile as $$
#variable_conflict use_column
declare
    is_moved boolean;
begin
    update transcripts
    set writer_run_id = p_run_id, writer_epoch = p_epoch
    where tenant_id = p_tenant_id and session_id = p_session_id and state = 'LIVE'
        and not tenant_is_purging(p_tenant_id)
        and (writer_epoch < p_epoch or (writer_epoch = p_epoch and writer_run_id = p_run_id));
    is_moved := found;
    return query
        select t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch, is_moved
        from transcripts t
        where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.state = 'LIVE'
            and not tenant_is_purging(p_tenant_id);
end
$$;

-- Ends the claim and every lower one, so that the transcript has no writer unless a higher claim
-- is the current one. A claim that was never acquired ends as well: the run may end before it
-- writes, and its token outlives it. The epoch stays, so that no ended claim returns. Returns the
-- head after that; no row if there is no transcript. Locks the transcript's row if it changes.
-- Index: transcripts primary key.
create function release_writer(p_tenant_id text, p_session_id text, p_run_id text, p_epoch bigint)
returns table (
    incarnation text, seq bigint, chain_hash bytea, writer_run_id text, writer_epoch bigint
) language plpgsql volatile as $$
#variable_conflict use_column
begin
    update transcripts
    set writer_run_id = '', writer_epoch = p_epoch
    where tenant_id = p_tenant_id and session_id = p_session_id and state = 'LIVE'
        and not tenant_is_purging(p_tenant_id)
        and (writer_epoch < p_epoch or (writer_epoch = p_epoch and writer_run_id = p_run_id));
    return query
        select t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch
        from transcripts t
        where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.state = 'LIVE'
            and not tenant_is_purging(p_tenant_id);
end
$$;

-- Returns the head, the chain hash of the entry before p_from_seq (null if there is none), and
-- beside them the entries from p_from_seq to the head, in no particular order: at most
-- p_row_count, and at most p_max_bytes of complete bodies, but always the first.
-- One row without an entry if there are none; no row if there is no transcript. All rows are of
-- one snapshot. Takes no lock. Cost: the returned entries. Indexes: the primary keys.
create function scan_window(
    p_tenant_id text, p_session_id text, p_from_seq bigint, p_row_count integer, p_max_bytes bigint
) returns table (
    incarnation text, head_seq bigint, head_chain_hash bytea, head_run_id text, head_epoch bigint,
    before_chain_hash bytea, seq bigint, entry_id text, parent_entry_id text, kind text, role text,
    writer_run_id text, writer_epoch bigint, writer_service text, writer_client text,
    create_time timestamptz, chain_hash bytea, body bytea, dropped_bytes integer
) language plpgsql stable set enable_sort = off as $$
begin
    return query
    select
        t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch,
        before.chain_hash, found.seq, found.entry_id, found.parent_entry_id, found.kind, found.role,
        found.writer_run_id, found.writer_epoch, found.writer_service, found.writer_client,
        found.create_time, found.chain_hash, found.body, found.dropped_bytes
    from transcripts t
    left join lateral (
        select e.chain_hash
        from entries e
        where e.tenant_id = p_tenant_id and e.session_id = p_session_id
            and e.seq between p_from_seq - 1 and p_from_seq - 1
        order by e.seq
        limit 1
    ) as before on true
    left join lateral (
        select * from (
            select page.*,
                sum(octet_length(page.body) + page.dropped_bytes) over (order by page.seq) as bytes_so_far
            from (
                select e.*
                from entries e
                where e.tenant_id = p_tenant_id and e.session_id = p_session_id
                    and e.seq between p_from_seq and t.seq
                order by e.seq
                limit p_row_count
            ) as page
        ) as measured
        where measured.bytes_so_far <= p_max_bytes or measured.seq = p_from_seq
    ) as found on true
    where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.state = 'LIVE'
        and not tenant_is_purging(p_tenant_id);
end
$$;

-- -------------------------------------------------------------------------------------------------
-- Functions of token counts
-- -------------------------------------------------------------------------------------------------

-- Stores the token counts of messages, notes, summaries and their stubs by another vocabulary,
-- and moves every total with them. p_stub_token_counts and p_thinking_token_counts have null for an
-- entry without a stub.
-- Returns the seqs that it changed. It skips an entry that got or lost a stub, or was recounted,
-- since the caller read it, and everything if the transcript has another incarnation. Locks the
-- transcript's row until commit, and then the entries. Indexes: the primary keys.
create function recount_entries(
    p_tenant_id text, p_session_id text, p_incarnation text, p_vocabulary text, p_seqs bigint[],
    p_token_counts integer[], p_stub_token_counts integer[], p_thinking_token_counts integer[]
) returns table (recounted_seq bigint) language plpgsql volatile
set enable_sort = off set enable_seqscan = off as $$
declare
    item record;
    found_entry record;
    seqs bigint[] := '{}';
    differences bigint[] := '{}';
begin
    perform from transcripts t
    where t.tenant_id = p_tenant_id and t.session_id = p_session_id and t.incarnation = p_incarnation
        and t.state = 'LIVE' and not tenant_is_purging(p_tenant_id)
    for update;
    if not found then
        return;
    end if;
    for item in
        select *
        from unnest(p_seqs, p_token_counts, p_stub_token_counts, p_thinking_token_counts)
            as given (seq, token_count, stub_token_count, thinking_token_count)
    loop
        select e.ctid as place, e.kind, e.token_count, e.token_vocabulary into found_entry
        from entries e
        where e.tenant_id = p_tenant_id and e.session_id = p_session_id
            and e.seq between item.seq and item.seq
        order by e.seq
        limit 1;
        if not found or found_entry.token_vocabulary = p_vocabulary
            or (item.stub_token_count is not null) <> exists (
                select from stubs s
                where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.seq = item.seq
            )
        then
            continue;
        end if;
        update entries e
        set token_vocabulary = p_vocabulary,
            token_count = case found_entry.kind when 'COMPACTION' then e.token_count else item.token_count end
        where e.ctid = found_entry.place;
        if not found then -- A move of its payloads has just moved the row.
            continue;
        end if;
        update stubs s
        set token_count = item.stub_token_count, thinking_token_count = item.thinking_token_count
        where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.seq = item.seq;
        if found_entry.kind = 'COMPACTION' then
            update summaries s
            set token_count = item.token_count
            where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.seq = item.seq;
        else
            seqs := seqs || item.seq;
            differences := differences || (item.token_count - found_entry.token_count)::bigint;
        end if;
        recounted_seq := item.seq;
        return next;
    end loop;
    update summaries s
    set covered_token_count = s.covered_token_count + (
        select coalesce(sum(changed.difference), 0)
        from unnest(seqs, differences) as changed (seq, difference)
        where changed.seq <= s.last_source_seq
    )
    where s.tenant_id = p_tenant_id and s.session_id = p_session_id;
    update transcripts t
    set token_count = t.token_count + (
        select coalesce(sum(difference), 0) from unnest(differences) as difference
    )
    where t.tenant_id = p_tenant_id and t.session_id = p_session_id;
end
$$;

-- -------------------------------------------------------------------------------------------------
-- Functions of deletion in pages
-- -------------------------------------------------------------------------------------------------

-- Deletes the rows at these places, and returns a row for each. The caller has found them in the
-- order of an index; a delete by a range of keys could use any index. The caller's rights hold.
create function delete_rows_at(p_table regclass, p_places tid[]) returns setof tid language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_bitmapscan = off as $$
begin
    return query execute format('delete from %s where ctid = any($1) returning ctid', p_table) using p_places;
end
$$;

-- -------------------------------------------------------------------------------------------------
-- Functions of activities
-- -------------------------------------------------------------------------------------------------

-- Keeps every other transaction from recording or deleting activities of the tenant until commit.
create function lock_activities(p_tenant_id text) returns void language sql volatile as $$
    select pg_advisory_xact_lock(hashtextextended('activities of ' || p_tenant_id, 0));
$$;

-- Records activities in their order, except those of transcripts that do not exist, and returns
-- the newest position; no row if it recorded none. It holds the tenant's lock until commit, so
-- positions rise in the order of commits: a reader of one position has missed none below it.
-- Indexes: the primary keys.
create function record_activities(p_tenant_id text, p_session_ids text[], p_bodies bytea[])
returns setof bigint language plpgsql volatile as $$
declare
    newest bigint;
begin
    if not enter_tenant(p_tenant_id) then
        return;
    end if;
    perform lock_activities(p_tenant_id);
    perform from unnest(p_session_ids) as given (session_id)
    where exists (
        select from transcripts t
        where t.tenant_id = p_tenant_id and t.session_id = given.session_id and t.state = 'LIVE'
    );
    if not found then
        return;
    end if;
    insert into activity_heads as h (tenant_id, position)
    values (p_tenant_id, cardinality(p_bodies))
    on conflict (tenant_id) do update
    set position = h.position + cardinality(p_bodies)
    returning position into newest;
    insert into activities (tenant_id, position, session_id, create_time, body)
    select p_tenant_id, newest - cardinality(p_bodies) + given.number, given.session_id, clock_timestamp(),
        given.body
    from unnest(p_session_ids, p_bodies) with ordinality as given (session_id, body, number)
    where exists (
        select from transcripts t
        where t.tenant_id = p_tenant_id and t.session_id = given.session_id and t.state = 'LIVE'
    );
    if found then
        return next newest;
    end if;
end
$$;

-- Deletes up to p_row_count activities of a deleted transcript, and returns their positions.
-- Waits for every recorder, which may have seen the transcript before. Index:
-- activities_session_idx.
create function delete_activities(p_tenant_id text, p_session_id text, p_row_count integer)
returns setof bigint language plpgsql volatile set enable_sort = off set enable_seqscan = off as $$
declare
    places tid[];
    positions bigint[];
begin
    perform lock_activities(p_tenant_id);
    select array_agg(page.place), array_agg(page.position) into places, positions
    from (
        select n.ctid as place, n.position
        from activities n
        where n.tenant_id = p_tenant_id and n.session_id between p_session_id and p_session_id
        order by n.session_id, n.position
        limit p_row_count
    ) as page;
    perform delete_rows_at('activities', places);
    return query select unnest(positions);
end
$$;

-- =================================================================================================
-- Functions: payloads
-- =================================================================================================

-- Functions that move payloads between the entries and the blob store. Each moves entry by entry,
-- and skips what another transaction moved first.

-- -------------------------------------------------------------------------------------------------
-- Functions of the stub tier
-- -------------------------------------------------------------------------------------------------

-- Returns the payloads of an entry. Index: payloads_session_idx.
create function find_payloads(p_tenant_id text, p_session_id text, p_seq bigint)
returns table (blob_id text, block_index integer, is_stored boolean, is_releasing boolean)
language plpgsql stable set enable_sort = off as $$
begin
    return query
    select p.blob_id, p.block_index, p.is_stored, p.is_releasing
    from payloads p
    where p.tenant_id = p_tenant_id and p.session_id = p_session_id and p.seq between p_seq and p_seq
    order by p.seq, p.block_index;
end
$$;

-- Locks the payloads of an entry until commit and returns their places, which stay valid for the
-- next statement. Index: payloads_session_idx.
create function lock_payloads(p_tenant_id text, p_session_id text, p_seq bigint)
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

-- Locks the transcript's row until commit: no deletion begins, no writer appends, and moves of
-- its payloads take turns. Returns false if the transcript cannot be read. Index: transcripts
-- primary key.
create function lock_for_payload_move(p_tenant_id text, p_session_id text) returns boolean
language plpgsql volatile as $$
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

-- Records payloads, whose inline copies stay, and stubs for entries that have none yet. p_files
-- is a list of payloads, each with its seq. Returns the seqs whose payloads it recorded. It skips
-- an entry that has payloads, and one whose stub was counted by another vocabulary than the entry
-- is now: a recount saw no stub to count. Locks as `lock_for_payload_move`, which excludes a
-- recount. Indexes: payloads_session_idx, the primary keys.
create function record_payloads(
    p_tenant_id text, p_session_id text, p_stub_seqs bigint[], p_token_counts integer[],
    p_token_vocabularies text[], p_stub_bodies bytea[], p_files jsonb
) returns table (recorded_seq bigint) language plpgsql volatile set enable_sort = off as $$
begin
    if not lock_for_payload_move(p_tenant_id, p_session_id) then
        return;
    end if;
    return query
    with fresh as materialized (
        select distinct file.seq
        from jsonb_to_recordset(p_files) as file (seq bigint)
        where not exists (select from find_payloads(p_tenant_id, p_session_id, file.seq))
            and not exists (
                select from unnest(p_stub_seqs, p_token_vocabularies) as stub (seq, token_vocabulary)
                where stub.seq = file.seq and stub.token_vocabulary is distinct from (
                    select e.token_vocabulary
                    from entries e
                    where e.tenant_id = p_tenant_id and e.session_id = p_session_id
                        and e.seq between stub.seq and stub.seq
                    order by e.seq
                    limit 1
                )
            )
    ), stubbed as (
        insert into stubs (tenant_id, session_id, seq, token_count, body)
        select p_tenant_id, p_session_id, stub.seq, stub.token_count, stub.body
        from unnest(p_stub_seqs, p_token_counts, p_stub_bodies) as stub (seq, token_count, body)
        where stub.seq in (select f.seq from fresh f)
        on conflict (tenant_id, session_id, seq) do update -- A condensed message.
        set token_count = excluded.token_count, body = excluded.body, is_stored = false, file_id = '',
            thinking_token_count = 0
    ), recorded as (
        insert into payloads (
            tenant_id, blob_id, session_id, seq, block_index, tool_name, about, mime_type, size_bytes,
            line_count, sha256
        )
        select p_tenant_id, file.blob_id, p_session_id, file.seq, file.block_index, file.tool_name,
            file.about, file.mime_type, file.size_bytes, file.line_count, file.sha256
        from jsonb_to_recordset(p_files) as file (
            blob_id text, seq bigint, block_index integer, tool_name text, about text, mime_type text,
            size_bytes bigint, line_count bigint, sha256 text
        )
        where file.seq in (select f.seq from fresh f)
    )
    select f.seq from fresh f;
end
$$;

-- Replaces bodies by shorter ones without their payloads. p_entries is a list with, for each body
-- of p_bodies: seq, whole_bytes, and the blob_ids that complete it. Returns the seqs that it
-- changed and the bytes dropped from each; it skips an entry that has changed since the caller
-- read it. Locks as `lock_for_payload_move`. Indexes: entries primary key, payloads_session_idx.
create function drop_inline_payloads(p_tenant_id text, p_session_id text, p_entries jsonb, p_bodies bytea[])
returns table (entry_seq bigint, byte_count integer) language plpgsql volatile set enable_sort = off as $$
declare
    item record;
    place tid;
    total bigint := 0;
begin
    if not lock_for_payload_move(p_tenant_id, p_session_id) then
        return;
    end if;
    for item in
        select * from rows from (
            jsonb_to_recordset(p_entries) as (seq bigint, whole_bytes integer, blob_ids text[]),
            unnest(p_bodies)
        ) as given (seq, whole_bytes, blob_ids, body)
    loop
        update entries e
        set body = item.body, dropped_bytes = item.whole_bytes - octet_length(item.body)
        where e.ctid = (
            select found.ctid
            from entries found
            where found.tenant_id = p_tenant_id and found.session_id = p_session_id
                and found.seq between item.seq and item.seq
            order by found.seq
            limit 1
        )
            and e.dropped_bytes = 0 and octet_length(e.body) = item.whole_bytes
            and (
                select array_agg(p.blob_id order by p.block_index)
                from find_payloads(p_tenant_id, p_session_id, item.seq) as p
                where p.is_stored and not p.is_releasing
            ) = item.blob_ids
        returning e.seq, e.dropped_bytes into entry_seq, byte_count;
        if found then
            for place in select l.place from lock_payloads(p_tenant_id, p_session_id, item.seq) as l loop
                update payloads p set is_inline = false where p.ctid = place;
            end loop;
            total := total + byte_count;
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

-- Puts complete bodies back, deletes the stubs and marks the payloads for release. A body is null
-- for an entry that is complete. Returns the seqs that it changed and the bytes restored to each;
-- it skips an entry that has changed since the caller read it. Locks as `lock_for_payload_move`.
-- Indexes: entries and stubs primary keys, payloads_session_idx.
create function restore_inline_payloads(
    p_tenant_id text, p_session_id text, p_seqs bigint[], p_bodies bytea[]
) returns table (entry_seq bigint, byte_count integer) language plpgsql volatile set enable_sort = off as $$
declare
    item record;
    place tid;
    stored_bytes integer;
    total bigint := 0;
begin
    if not lock_for_payload_move(p_tenant_id, p_session_id) then
        return;
    end if;
    for item in select * from unnest(p_seqs, p_bodies) as given (seq, body) loop
        select e.seq, e.dropped_bytes, octet_length(e.body) into entry_seq, byte_count, stored_bytes
        from entries e
        where e.tenant_id = p_tenant_id and e.session_id = p_session_id
            and e.seq between item.seq and item.seq
        order by e.seq;
        if not found
            or (byte_count > 0 and octet_length(item.body) is distinct from stored_bytes + byte_count)
        then
            continue;
        end if;
        if byte_count > 0 then
            update entries e
            set body = item.body, dropped_bytes = 0
            where e.ctid = (
                select found.ctid
                from entries found
                where found.tenant_id = p_tenant_id and found.session_id = p_session_id
                    and found.seq between item.seq and item.seq
                order by found.seq
                limit 1
            );
            if not found then -- A recount has just moved the row.
                continue;
            end if;
            total := total + byte_count;
        end if;
        delete from stubs s
        where s.tenant_id = p_tenant_id and s.session_id = p_session_id and s.seq = item.seq;
        for place in select l.place from lock_payloads(p_tenant_id, p_session_id, item.seq) as l loop
            update payloads p set is_releasing = true where p.ctid = place;
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
