-- Transcripts, their entries, and the keys of their appends. Every table leads its key with tenant_id and shows a transaction its tenant's rows only.

-- One row for each transcript: where it stands and who may write. Locking this row orders all its writers.
create table transcripts (
    tenant_id              text        not null,
    session_id             text        not null,
    incarnation            text        not null,
    forked_from_session_id text        not null,
    seq                    bigint      not null default 0,
    chain_hash             bytea       not null default ''::bytea,
    newest_entry_id        text        not null default '',
    writer_run_id          text        not null default '',
    writer_epoch           bigint      not null default 0,
    turn_count             bigint      not null default 0, -- Messages and system notes.
    superseded_turn_count  bigint      not null default 0,
    token_count            bigint      not null default 0,
    create_time            timestamptz not null default now(),
    primary key (tenant_id, session_id)
) with (fillfactor = 70); -- Updated with every append; room in the page keeps those updates off the index.

-- Stored once and never changed. What selection reads (role, token_count, calls, answers, target_seq) stands beside the body, so that it never
-- opens one. role and label are empty where the kind has none.
create table entries (
    tenant_id       text        not null,
    session_id      text        not null,
    seq             bigint      not null,
    entry_id        text        not null,
    parent_entry_id text        not null,
    kind            text        not null,
    role            text        not null,
    token_count     integer     not null,
    calls           text[]      not null,
    answers         text        not null,
    is_synthetic    boolean     not null,
    label           text        not null,
    target_seq      bigint,
    writer_run_id   text        not null,
    writer_epoch    bigint      not null,
    writer_service  text        not null,
    create_time     timestamptz not null,
    chain_hash      bytea       not null,
    body            bytea       not null,
    primary key (tenant_id, session_id, seq),
    unique (tenant_id, session_id, entry_id),
    check (kind in ('HEADER', 'MESSAGE', 'NOTE', 'LABEL')),
    check (role in ('', 'USER', 'ASSISTANT', 'TOOL_RESULT')),
    check (label in ('', 'SUPERSEDED', 'FINAL')),
    check ((label = '') = (target_seq is null))
);
create index entries_user_idx on entries (tenant_id, session_id, seq) where role = 'USER';
create index entries_superseded_idx on entries (tenant_id, session_id, target_seq) where label = 'SUPERSEDED';

-- What each idempotency key appended, and the head right behind it.
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

alter table transcripts enable row level security;
alter table transcripts force row level security;
create policy tenant on transcripts
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table entries enable row level security;
alter table entries force row level security;
create policy tenant on entries
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table appends enable row level security;
alter table appends force row level security;
create policy tenant on appends
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
