-- The schema of the transcript service.
--
-- Each key begins with tenant_id. Row-level security shows a transaction only the rows of the
-- tenant in `spawnmesh.tenant`, which the transaction sets first.
--
-- Contents
--   Tables of tenants
--     tenants, tenant_work, purged_tenants
--   Tables of transcripts
--     transcripts, entries, appends, draft_pieces, imports
--   Tables of the stub tier
--     payloads, stubs
--   Tables of compaction
--     summaries
--   Tables of search
--     search_progress, search_pieces
--   Tables of activities
--     activity_heads, activities
--   Background jobs
--     jobs, job_queue
--   Operations
--     operations
--   Tables of the audit log
--     audit_chains, audit_events
--   Statistics
--   Row-level security
--   The hash chain
--     link_chain

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
    -- A worker continues to verify in this transcript behind verified_seq, or behind this
    -- transcript if verified_seq is 0.
    verified_session_id      text        not null default '',
    verified_incarnation     text        not null default '',
    verified_seq             bigint      not null default 0,
    verified_chain_hash      bytea       not null default ''::bytea,
    primary key (tenant_id)
);

-- The tenants that the worker goes through: ids and times alone, since they are read over all
-- tenants. A row is deleted when the purge of its tenant begins.
create table tenant_work (
    tenant_id text        not null primary key,
    work_time timestamptz -- When a worker last claimed the tenant.
);
comment on table tenant_work is 'citus: local';

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
-- The checks of transcripts and entries are those of domains: PostgreSQL parses the text of a
-- table's constraint again for each insert, which took a tenth of the server's time for an append,
-- and keeps those of a domain.
create domain transcript_state as text check (value in ('IMPORTING', 'LIVE', 'DELETED'));
create domain counter as bigint check (value >= 0);

create table transcripts (
    tenant_id              text        not null,
    session_id             text        not null,
    state                  transcript_state not null default 'LIVE',
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
    superseded_turn_count  counter     not null default 0,
    token_count            bigint      not null default 0,
    logical_bytes          bigint      not null default 0, -- Of all bodies as they were appended.
    dropped_bytes          counter     not null default 0, -- Of those, the bytes no longer in `entries`.
    -- The head at the time when a worker last dropped every inline payload that it may drop.
    inline_dropped_seq     bigint      not null default 0,
    create_time            timestamptz not null default now(),
    primary key (tenant_id, session_id)
) with (fillfactor = 70); -- Each append updates the row; free space in the page keeps updates off the index.

-- Serves `list_family`: the children of a session.
create index transcripts_parent_idx on transcripts (tenant_id, parent_session_id)
    where parent_session_id <> '';

create domain entry_kind as text check (value in (
    'HEADER', 'MESSAGE', 'NOTE', 'LABEL', 'MODEL_CHANGE', 'COMPACTION', 'BRANCH_SUMMARY', 'CUSTOM', 'OPAQUE',
    'MIRROR'
));
-- Of a message or mirror; otherwise empty.
create domain entry_role as text check (value in (
    '', 'USER', 'ASSISTANT', 'TOOL_RESULT', 'BASH_EXECUTION', 'CUSTOM'
));
create domain entry_label as text check (value in ('', 'SUPERSEDED', 'FINAL'));

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
    kind             entry_kind  not null,
    role             entry_role  not null,
    token_count      integer     not null,
    calls            text[]      not null, -- Ids of the tool calls in the entry.
    answers          text        not null, -- Id of the tool call that the entry answers, or empty.
    is_synthetic     boolean     not null,
    label            entry_label not null,
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
    check ((label = '') = (target_seq is null)),
    constraint entries_id_key unique (entry_id, tenant_id)
);

-- Serves lookups by entry_id. In a table that looks small, a B-tree of ids costs the planner what
-- the primary key of all entries of the tenant costs; this index has no descent and costs less.
create index entries_id_idx on entries using hash (entry_id);
-- Serves `read_newest_user_turn`.
create index entries_user_idx on entries (tenant_id, session_id, seq) where role = 'USER';
-- Serves every query that leaves superseded entries out.
create index entries_superseded_idx on entries (tenant_id, session_id, target_seq)
    where label = 'SUPERSEDED';

-- One row for each request_id: which entries it appended, and the claim that they were made under.
create table appends (
    tenant_id     text   not null,
    session_id    text   not null,
    request_id    text   not null,
    content_hash  bytea  not null,
    first_seq     bigint not null,
    last_seq      bigint not null,
    writer_run_id text   not null,
    writer_epoch  bigint not null,
    primary key (tenant_id, session_id, request_id)
);

-- The answer that the current writer's model is giving: one row for each piece, without gaps. A
-- draft is the newest number of the claim's epoch. Only the draft of the current claim is valid,
-- and until the claim appends an answer behind after_seq. Pieces of other drafts are left to the
-- next draft, the end of the claim and the deletion of the transcript, which delete them.
create table draft_pieces (
    tenant_id    text   not null,
    session_id   text   not null,
    epoch        bigint not null,
    number       bigint not null,
    place        bigint not null, -- Of the piece in its draft, from 1.
    begin_offset bigint not null, -- In bytes, over pieces of all kinds.
    end_offset   bigint not null,
    run_id       text   not null,
    after_seq    bigint not null, -- The head when the model was asked.
    model        text   not null,
    kind         text   not null check (kind in ('TEXT', 'THINKING', 'TOOL_CALL')),
    -- Of a tool call: its id, its tool, and whether the piece is its first.
    tool_call_id text    not null default '',
    tool_name    text    not null default '',
    begins_call  boolean not null default false,
    text         bytea  not null, -- In UTF-8. Of a tool call: of the JSON text of its arguments.
    primary key (tenant_id, session_id, epoch, number, begin_offset),
    check (end_offset > begin_offset)
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
    primary key (tenant_id, session_id, seq, block_index)
);

create unique index payloads_blob_key on payloads (blob_id, tenant_id);
-- Serves lookups by blob_id, as entries_id_idx does.
create index payloads_blob_idx on payloads using hash (blob_id);
-- Serves `list_unstored_payloads`.
create index payloads_unstored_idx on payloads (tenant_id, session_id, seq) where not is_stored;
-- Serves `list_inline_entries` and `list_transcripts_with_inline_payloads`.
create index payloads_inline_idx on payloads (tenant_id, session_id, seq)
    where is_inline and not is_releasing;
-- Serves `list_releasing_payloads`.
create index payloads_releasing_idx on payloads (tenant_id, session_id, seq) where is_releasing;

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

create unique index stubs_file_key on stubs (file_id, tenant_id) where file_id <> '';
-- Serves `read_condensed_entry`, as entries_id_idx does.
create index stubs_file_idx on stubs using hash (file_id) where file_id <> '';

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
    primary key (tenant_id, session_id, seq),
    check (first_source_seq <= last_source_seq and last_source_seq < seq),
    -- IMPORTED: the agent whose session file was imported made it.
    check (method in ('NORMAL', 'AGGRESSIVE', 'EXCERPT', 'IMPORTED'))
);

-- -------------------------------------------------------------------------------------------------
-- Tables of search
-- -------------------------------------------------------------------------------------------------

-- The head up to which each transcript is indexed. The first search of a transcript creates its
-- index, and each search extends it; an append pays nothing for it.
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

-- The actions of the service on transcripts, for watchers, kept for some days.
create table activities (
    tenant_id   text        not null,
    position    bigint      not null,
    session_id  text        not null,
    create_time timestamptz not null,
    body        bytea       not null, -- An Activity message without position, session and time.
    primary key (tenant_id, position)
);

-- Serves `list_activities` of one session and `delete_activities`.
create index activities_session_idx on activities (tenant_id, session_id, position) where session_id <> '';

-- -------------------------------------------------------------------------------------------------
-- Background jobs
-- -------------------------------------------------------------------------------------------------

-- Background jobs: ids and times of work that is left. A job is waiting, or a worker has claimed it
-- until `due_time`, or it is dead: it failed for good, and waits for an operator. A job that is
-- done is deleted. See `spawnmesh_postgres.jobs`.
create table jobs (
    tenant_id     text        not null,
    kind          text        not null,
    key           text        not null,
    due_time      timestamptz not null default now(), -- Of a claimed job: when its claim ends.
    attempt_count integer     not null default 0,
    claim_id      uuid,                               -- The fencing token of the claim.
    arguments     jsonb       not null default '{}',  -- Ids, never content.
    traceparent   text        not null default '',
    create_time   timestamptz not null default now(),
    dead_time     timestamptz,
    last_error    text        not null default '',
    primary key (tenant_id, kind, key),
    check (kind <> '' and key <> ''),
    check (attempt_count >= 0),
    check (jsonb_typeof(arguments) = 'object'),
    check (dead_time is null or claim_id is null)
);
comment on table jobs is 'citus: local';
alter table jobs alter column tenant_id set statistics 0;
-- claim_jobs and count_jobs, which alone repeat the condition.
create index jobs_due_idx on jobs (kind, tenant_id, due_time) where dead_time is null;
-- list_dead_jobs and count_jobs.
create index jobs_dead_idx on jobs (tenant_id, kind, key) where dead_time >= '-infinity';
alter table jobs enable row level security;
alter table jobs force row level security;
create policy tenant on jobs using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- Ids, times and counters of the jobs, which a worker claims over all tenants. The view reads and
-- writes with the rights of the owner, and only the owner has a policy for the scope '*': in this
-- scope, the role of the service sees no other column. It reads the rest in the scope of the job's
-- tenant. The view has no condition, so nothing of the table can leak through one.
create policy every_tenant on jobs for select to current_user
    using (current_setting('spawnmesh.tenant', true) = '*');
create policy claim_of_every_tenant on jobs for update to current_user
    using (current_setting('spawnmesh.tenant', true) = '*');
create view job_queue as
    select tenant_id, kind, key, due_time, attempt_count, claim_id, create_time, dead_time from jobs;
comment on view job_queue is 'citus: local';

-- -------------------------------------------------------------------------------------------------
-- Operations
-- -------------------------------------------------------------------------------------------------

-- Long work that clients started. A row is open until it has an `end_time`; a job of the kind
-- `operation` with its id executes it, and deletes it some time after its end. `request` and
-- `response` are messages of the contract: ids, options and counts, never content. See
-- `spawnmesh_postgres.long_running`.
create table operations (
    tenant_id    text        not null,
    operation_id text        not null,
    method       text        not null,                -- The RPC that started it.
    request_id   text        not null,
    request      bytea       not null,
    subject      text        not null,                -- Of the token that started it.
    response     bytea,                               -- As far as it is known.
    position     text        not null default '',     -- Where the next step continues.
    step_count   bigint      not null default 0,      -- The fencing token of a step.
    done_count   bigint      not null default 0,
    total_count  bigint      not null default 0,      -- 0 if it is not known.
    retry_reason text        not null default '',
    error        bytea,                               -- A google.rpc.Status.
    create_time  timestamptz not null default now(),
    update_time  timestamptz not null default now(),
    cancel_time  timestamptz,
    end_time     timestamptz,
    primary key (tenant_id, operation_id),
    unique (tenant_id, method, request_id),
    check (error is null or end_time is not null),
    check (done_count >= 0 and total_count >= 0 and step_count >= 0)
);
-- count_open_operations.
create index operations_open_idx on operations (tenant_id) where end_time is null;
-- delete_old_operations.
create index operations_end_idx on operations (tenant_id, end_time) where end_time is not null;
alter table operations enable row level security;
alter table operations force row level security;
create policy tenant on operations using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

-- -------------------------------------------------------------------------------------------------
-- Tables of the audit log
-- -------------------------------------------------------------------------------------------------

-- The audit log: calls that changed something, and denied calls. Ids, never content. The events of
-- a tenant are a chain: each has the hash of the one before it and of itself. The rows outlive the
-- tenant. Events without a tenant have the tenant '*'. The service reads and adds events, and moves
-- the ends of chains; only the owner of the schema removes events, from the beginning of a chain.
-- See `spawnmesh_postgres.audit`.
create table audit_chains (
    tenant_id       text   not null primary key,
    last_sequence   bigint not null default 0,
    last_hash       bytea  not null default decode(repeat('00', 32), 'hex'),
    hidden_sequence bigint not null default 0, -- The last event of an earlier tenant of this name.
    cut_sequence    bigint not null default 0, -- The last event that the retention removed,
    cut_hash        bytea  not null default decode(repeat('00', 32), 'hex'), -- and its hash.
    check (cut_sequence <= last_sequence)
);
comment on table audit_chains is 'citus: local';
create table audit_events (
    tenant_id   text        not null,
    sequence    bigint      not null,
    event_id    text        not null,
    event_time  timestamptz not null,
    last_time   timestamptz not null,
    call_count  bigint      not null,
    method      text        not null,
    caller_kind text        not null,
    subject     text        not null,
    token_id    text        not null,
    resources   text[]      not null,
    code        text        not null,
    reason      text        not null,
    trace_id    text        not null,
    peer        text        not null,
    hash        bytea       not null,
    primary key (tenant_id, sequence)
);
comment on table audit_events is 'citus: local';
-- list_events.
create index audit_events_time_idx on audit_events (event_time, tenant_id, sequence);
-- list_tenant_events.
create index audit_events_tenant_idx on audit_events (tenant_id, event_time, sequence);
-- find_stored_events.
create index audit_events_id_idx on audit_events (event_id);
alter table audit_chains enable row level security;
alter table audit_chains force row level security;
create policy tenant on audit_chains for select
    using (tenant_id = current_setting('spawnmesh.tenant', true));
create policy new_tenant on audit_chains for update
    using (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on audit_chains for select
    using (current_setting('spawnmesh.tenant', true) = '*');
create policy adding on audit_chains for insert
    with check (current_setting('spawnmesh.tenant', true) = '*');
create policy advancing on audit_chains for update
    using (current_setting('spawnmesh.tenant', true) = '*');
alter table audit_events enable row level security;
alter table audit_events force row level security;
create policy tenant on audit_events for select
    using (tenant_id = current_setting('spawnmesh.tenant', true));
create policy every_tenant on audit_events for select
    using (current_setting('spawnmesh.tenant', true) = '*');
create policy adding on audit_events for insert
    with check (current_setting('spawnmesh.tenant', true) = '*');
create policy retention on audit_events for delete to current_user
    using (current_setting('spawnmesh.tenant', true) = '*');

-- -------------------------------------------------------------------------------------------------
-- Statistics
-- -------------------------------------------------------------------------------------------------

-- The planner expects one row in 200 for a value of these columns, whatever it has seen of other
-- tenants: an index of which more columns are given is always cheaper, and reading all rows of a
-- tenant or a transcript is never cheap.
alter table transcripts
    alter column tenant_id set statistics 0, alter column session_id set statistics 0,
    alter column parent_session_id set statistics 0;
alter table entries
    alter column tenant_id set statistics 0, alter column session_id set statistics 0,
    alter column seq set statistics 0, alter column entry_id set statistics 0,
    alter column target_seq set statistics 0;
alter table appends
    alter column tenant_id set statistics 0, alter column session_id set statistics 0,
    alter column request_id set statistics 0;
alter table draft_pieces
    alter column tenant_id set statistics 0, alter column session_id set statistics 0,
    alter column epoch set statistics 0, alter column number set statistics 0,
    alter column begin_offset set statistics 0;
alter table imports
    alter column tenant_id set statistics 0, alter column session_id set statistics 0;
alter table payloads
    alter column tenant_id set statistics 0, alter column session_id set statistics 0,
    alter column seq set statistics 0, alter column blob_id set statistics 0;
alter table stubs
    alter column tenant_id set statistics 0, alter column session_id set statistics 0,
    alter column seq set statistics 0, alter column file_id set statistics 0;
alter table summaries
    alter column tenant_id set statistics 0, alter column session_id set statistics 0,
    alter column seq set statistics 0;
alter table search_progress
    alter column tenant_id set statistics 0, alter column session_id set statistics 0;
alter table search_pieces
    alter column tenant_id set statistics 0, alter column session_id set statistics 0,
    alter column seq set statistics 0;
alter table activities
    alter column tenant_id set statistics 0, alter column position set statistics 0,
    alter column session_id set statistics 0;

-- -------------------------------------------------------------------------------------------------
-- Row-level security
-- -------------------------------------------------------------------------------------------------

-- FORCE subjects the owner as well. A policy without WITH CHECK checks new rows by its USING
-- expression.
alter table tenants enable row level security;
alter table tenants force row level security;
create policy tenant on tenants using (tenant_id = current_setting('spawnmesh.tenant', true));

alter table tenant_work enable row level security;
alter table tenant_work force row level security;
create policy tenant on tenant_work using (tenant_id = current_setting('spawnmesh.tenant', true));

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

alter table draft_pieces enable row level security;
alter table draft_pieces force row level security;
create policy tenant on draft_pieces using (tenant_id = current_setting('spawnmesh.tenant', true));

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

-- A worker lists the tenants and claims jobs, and reads nothing else across tenants.
create policy every_tenant on tenant_work for select
    using (current_setting('spawnmesh.tenant', true) = '*');

-- -------------------------------------------------------------------------------------------------
-- The hash chain
-- -------------------------------------------------------------------------------------------------

create function link_chain(previous bytea, link bytea) returns bytea
language sql immutable parallel safe as $$
    select sha256(previous || link);
$$;

-- As a window function, returns the chain hash of each entry. The link of the first entry begins
-- with the chain hash of the entry before it: see domain/chain.py.
create aggregate chain_hash (bytea) (sfunc = link_chain, stype = bytea, initcond = '');
