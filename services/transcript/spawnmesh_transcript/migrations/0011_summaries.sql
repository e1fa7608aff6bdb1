-- Summaries that stand for the oldest entries of a transcript.

-- One row for each compaction; seq is that of its entry, and the one with the highest seq holds. Contexts read it in place of the entries up to
-- last_source_seq. token_count: of what a model reads of it. covered_…: of all messages and notes from the transcript's beginning up to
-- last_source_seq, superseded ones among them. is_told: observers know of it.
create table summaries (
    tenant_id                text    not null,
    session_id               text    not null,
    seq                      bigint  not null,
    entry_id                 text    not null,
    first_source_seq         bigint  not null,
    last_source_seq          bigint  not null,
    previous_seq             bigint,
    source_entry_count       integer not null,
    source_token_count       bigint  not null,
    covered_turn_count       bigint  not null,
    covered_superseded_count bigint  not null,
    covered_token_count      bigint  not null,
    token_count              integer not null,
    method                   text    not null check (method in ('NORMAL', 'AGGRESSIVE', 'EXCERPT')),
    model                    text    not null,
    run_id                   text    not null,
    is_told                  boolean not null default false,
    primary key (tenant_id, session_id, seq),
    check (first_source_seq <= last_source_seq and last_source_seq < seq)
);
create index summaries_untold_idx on summaries (tenant_id) where not is_told;

alter table summaries enable row level security;
alter table summaries force row level security;
create policy tenant on summaries
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
