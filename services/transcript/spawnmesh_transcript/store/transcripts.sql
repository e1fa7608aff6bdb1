-- name: insert_transcript
-- Follows `join_writers`. Returns no row if the tenant is being purged, or the
-- transcript exists in any state, DELETED included. Waits for a transaction that inserts or deletes
-- the same transcript. Indexes: tenants and transcripts primary keys.
insert into transcripts (tenant_id, session_id, incarnation, forked_from_session_id, parent_session_id)
select %(tenant_id)s, %(session_id)s, %(incarnation)s, %(forked_from_session_id)s, %(parent_session_id)s
where not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
on conflict do nothing
returning incarnation;

-- name: begin_transcript
-- Follows `join_writers` in a transaction of its own. Inserts a transcript with its
-- first entry, and returns the chain hash of the entry. Returns no row, and writes nothing, if the
-- tenant is being purged or the transcript exists in any state, DELETED included. Waits for a
-- transaction that inserts or deletes the same transcript. `linked` is materialized: the entry has
-- the time of its hash, so the clock is read once. Indexes: tenants, transcripts and entries
-- primary keys.
with linked as materialized (
    select j.moment, sha256(convert_to(concat_ws(
            E'\n', %(entry_id)s::text, '', '', 0, %(service)s::text,
            (extract(epoch from j.moment) * 1000000)::bigint, 0, '', ''
        ), 'UTF8') || %(body)b) as chain_hash
    from (select clock_timestamp() as moment) as j
    where not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
), begun as (
    insert into transcripts (
        tenant_id, session_id, incarnation, forked_from_session_id, parent_session_id, seq, chain_hash,
        newest_entry_id, logical_bytes
    )
    select %(tenant_id)s, %(session_id)s, %(incarnation)s, '', %(parent_session_id)s, 1, l.chain_hash,
        %(entry_id)s, octet_length(%(body)b)
    from linked l
    on conflict do nothing
    returning session_id
)
insert into entries (
    tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers,
    is_synthetic, label, writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash,
    body
)
select %(tenant_id)s, b.session_id, 1, %(entry_id)s, '', 'HEADER', '', 0, '{}', '', false, '', '', 0,
    %(service)s, '', l.moment, l.chain_hash, %(body)b
from begun b
cross join linked l
returning chain_hash;

-- name: read_transcript
-- Takes no lock. Index: transcripts primary key.
select incarnation, forked_from_session_id, seq, chain_hash, writer_run_id, writer_epoch, turn_count,
    superseded_turn_count, token_count
from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE'
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s);

-- name: has_begun
-- Finds the row in any state. Takes no lock. Index: transcripts primary key.
select from transcripts where tenant_id = %(tenant_id)s and session_id = %(session_id)s;

-- name: is_deleted
-- Takes no lock. Index: transcripts primary key.
select from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'DELETED';

-- name: is_descendant
-- Walks up from the session. Each parent is looked up by itself: a join may read all transcripts
-- of the tenant. Takes no lock. Index: transcripts primary key.
with recursive line as (
    select t.session_id, t.parent_session_id
    from transcripts t
    where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s
    union
    select t.session_id, t.parent_session_id
    from line l
    cross join lateral (
        select session_id, parent_session_id
        from transcripts
        where tenant_id = %(tenant_id)s and session_id = l.parent_session_id
        limit 1
    ) as t
)
select from line where session_id = %(ancestor_id)s;

-- name: list_family
-- Lists the readable transcripts of the session and its descendants. Takes no lock. The children of
-- each are looked up by themselves: a join may read all transcripts of the tenant. Indexes:
-- transcripts primary key, transcripts_parent_idx.
with recursive family as (
    select t.session_id, t.state
    from transcripts t
    where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s
    union
    select child.session_id, child.state
    from family f
    cross join lateral (
        select array_agg(session_id) as session_ids, array_agg(state) as states
        from transcripts
        where tenant_id = %(tenant_id)s and parent_session_id = f.session_id and parent_session_id <> ''
    ) as children
    cross join lateral unnest(children.session_ids, children.states) as child (session_id, state)
)
select session_id from family where state = 'LIVE' order by session_id <> %(session_id)s,
    session_id collate "C";

-- name: list_transcript_sizes
-- Takes no lock. Looks at %(scan_limit)s rows at most, those of deleted transcripts too. The last
-- of these is a row with `is_end`, also if its transcript is deleted. Index: transcripts primary
-- key.
select session_id, entry_count, token_count, logical_bytes, stored_bytes, is_live,
    place = %(scan_limit)s as is_end
from (
    select session_id, seq as entry_count, token_count, logical_bytes,
        logical_bytes - dropped_bytes as stored_bytes, state = 'LIVE' as is_live,
        row_number() over (order by session_id) as place
    from (
        select * from transcripts
        where tenant_id = %(tenant_id)s and session_id > %(after_session_id)s
            and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
        order by session_id
        limit (select %(scan_limit)s::bigint)
    ) nearest
) scanned
where is_live or place = %(scan_limit)s
order by session_id
limit (select %(row_count)s::bigint);

-- name: list_session_ids
-- Takes no lock. Index: transcripts primary key.
select session_id
from transcripts
where tenant_id = %(tenant_id)s and session_id > %(after_session_id)s and state = 'LIVE'
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
order by session_id
limit (select %(row_count)s::bigint);
