-- What is found by words. Made when a transcript is first searched, and gone on with at each search: appends pay nothing for it.

-- How far each transcript's entries have been read. A row is there only while the transcript is.
create table search_progress (
    tenant_id  text   not null,
    session_id text   not null,
    seq        bigint not null,
    primary key (tenant_id, session_id)
);

-- The words of each entry, in pieces that are small enough to keep the place of every word.
create table search_pieces (
    tenant_id  text     not null,
    session_id text     not null,
    seq        bigint   not null,
    piece      integer  not null,
    words      tsvector not null,
    primary key (tenant_id, session_id, seq, piece)
);

alter table search_progress enable row level security;
alter table search_progress force row level security;
create policy tenant on search_progress
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));

alter table search_pieces enable row level security;
alter table search_pieces force row level security;
create policy tenant on search_pieces
    using (tenant_id = current_setting('spawnmesh.tenant', true))
    with check (tenant_id = current_setting('spawnmesh.tenant', true));
