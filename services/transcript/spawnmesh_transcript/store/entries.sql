-- name: list_entries_after
-- Takes no lock. A page ends early to stay within %(max_bytes)s of complete bodies, but has at
-- least one entry. found_count is one more than the page if there are more entries. Index: entries
-- primary key.
select
    entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service, writer_client,
    create_time, chain_hash, body, dropped_bytes, found_count
from (
    select *, sum(octet_length(body) + dropped_bytes) over nearest as bytes_so_far,
        row_number() over nearest as position, count(*) over () as found_count
    from (
        select *
        from entries
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(seq)s
            and (%(kinds)s::text[] is null or kind = any(%(kinds)s::text[]))
            and (%(roles)s::text[] is null or role = any(%(roles)s::text[]))
        order by seq
        limit %(page_size)s + 1
    ) as page
    window nearest as (order by seq)
) as measured
where position <= %(page_size)s and (bytes_so_far <= %(max_bytes)s or position = 1)
order by seq;

-- name: list_entries_before
-- As `list_entries_after`, newest first. Takes no lock. Index: entries primary key, backwards.
select
    entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service, writer_client,
    create_time, chain_hash, body, dropped_bytes, found_count
from (
    select *, sum(octet_length(body) + dropped_bytes) over nearest as bytes_so_far,
        row_number() over nearest as position, count(*) over () as found_count
    from (
        select *
        from entries
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq < %(seq)s
            and (%(kinds)s::text[] is null or kind = any(%(kinds)s::text[]))
            and (%(roles)s::text[] is null or role = any(%(roles)s::text[]))
        order by seq desc
        limit %(page_size)s + 1
    ) as page
    window nearest as (order by seq desc)
) as measured
where position <= %(page_size)s and (bytes_so_far <= %(max_bytes)s or position = 1)
order by seq desc;

-- name: read_newest_user_turn
-- Returns the newest message of a user that is not superseded. Takes no lock. The marks are read
-- one message at a time: `not exists` would be joined, and could read all marks of the session.
-- Indexes: entries_user_idx, entries_superseded_idx.
select said.seq, said.token_count, said.token_vocabulary,
    octet_length(said.body) + said.dropped_bytes as size_bytes
from entries said
where said.tenant_id = %(tenant_id)s and said.session_id = %(session_id)s and said.role = 'USER'
    and (
        select true from entries mark
        where mark.tenant_id = %(tenant_id)s and mark.session_id = %(session_id)s
            and mark.target_seq between said.seq and said.seq
            and mark.label = 'SUPERSEDED'
        order by mark.target_seq
        limit 1
    ) is null
order by said.seq desc
limit 1;

-- name: read_token_vocabularies
-- Takes no lock. Needs `keep_index_order`; the range in order leaves the planner no other index.
-- Index: entries primary key.
select entry.seq, entry.token_vocabulary
from unnest(%(seqs)s::bigint[]) as wanted (seq)
cross join lateral (
    select seq, token_vocabulary
    from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between wanted.seq and wanted.seq
    order by seq
    offset 0
) as entry;

-- name: scan_entries
-- Reads lengths of complete bodies and no bodies, newest first. Takes no lock. Index: entries
-- primary key, backwards.
select seq, kind, role, token_count, calls, answers, is_synthetic, label, target_seq, token_vocabulary,
    octet_length(body) + dropped_bytes as size_bytes
from entries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(after_seq)s
    and seq < %(before_seq)s
order by seq desc
limit %(row_count)s;

-- name: read_entries_in_part
-- As `read_entries`, but it does not read the bodies for which %(is_bodiless)s is true. These flags
-- are in the order of all seqs; those of a run begin behind first_place. Takes no lock. Needs
-- `keep_index_order`. Index: entries primary key.
select
    entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service, writer_client,
    create_time, chain_hash, body, dropped_bytes
from (select %(is_bodiless)s::boolean[] as is_bodiless) as flags
cross join unnest(%(first_seqs)s::bigint[], %(last_seqs)s::bigint[], %(first_places)s::integer[])
    as run (first_seq, last_seq, first_place)
cross join lateral (
    select entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service,
        writer_client, create_time, chain_hash,
        case when flags.is_bodiless[run.first_place + (seq - run.first_seq + 1)::integer] then ''::bytea
            else body end as body,
        case when flags.is_bodiless[run.first_place + (seq - run.first_seq + 1)::integer] then 0
            else dropped_bytes end as dropped_bytes
    from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
        and seq between run.first_seq and run.last_seq
    order by seq
    offset 0
) as entry;

-- name: read_entries
-- Takes no lock. One range scan for each run of seqs. Needs `keep_index_order`; the order leaves
-- the planner no other index. Index: entries primary key.
select
    entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service, writer_client,
    create_time, chain_hash, body, dropped_bytes
from unnest(%(first_seqs)s::bigint[], %(last_seqs)s::bigint[]) as run (first_seq, last_seq)
cross join lateral (
    select entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service,
        writer_client, create_time, chain_hash, body, dropped_bytes
    from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
        and seq between run.first_seq and run.last_seq
    order by seq
    offset 0
) as entry;

-- name: scan_window
-- Runs as a transaction of its own. Takes no lock. The function documents its cost and its indexes.
select *
from scan_window(set_config('spawnmesh.tenant', %(tenant_id)s, true), %(session_id)s, %(from_seq)s,
    %(row_count)s, %(max_bytes)s);

-- name: write_entries
-- The transaction has inserted the transcript, and so holds its row. The function documents its
-- cost.
select incarnation, seq, chain_hash, writer_run_id, writer_epoch
from write_entries(
    (select t from transcripts t where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s), '', 0,
    %(service)s, '', %(entries)s, %(bodies)b, 1
);

-- name: scan_sizes
-- Reads no bodies, oldest first. Takes no lock. Index: entries primary key.
select seq, role, octet_length(body) as stored_bytes, dropped_bytes
from entries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(after_seq)s
order by seq
limit %(row_count)s;
