-- name: begin_snapshot
-- First in a transaction whose statements must all see the same moment, and read entries as `keep_index_order` says.
set transaction isolation level repeatable read, read only;
set local enable_sort = off;

-- name: keep_index_order
-- From here on, statements of the transaction read entries in the order of an index. A planner that thinks transcripts short, as it does while
-- it has counted nothing, else takes another index of the session, reads the whole transcript, and sorts or filters it.
set local enable_sort = off;

-- name: list_entries_after
-- No lock. A page ends early rather than pass %(max_bytes)s of whole bodies, but has at least one entry; found_count is one more than the page where
-- there are more. Index: entries primary key.
select
    entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body,
    dropped_bytes, found_count
from (
    select *, sum(octet_length(body) + dropped_bytes) over nearest as bytes_so_far, row_number() over nearest as position, count(*) over () as found_count
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
-- No lock, newest first. A page ends early rather than pass %(max_bytes)s of whole bodies, but has at least one entry; found_count is one more than the page where
-- there are more. Index: entries primary key.
select
    entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body,
    dropped_bytes, found_count
from (
    select *, sum(octet_length(body) + dropped_bytes) over nearest as bytes_so_far, row_number() over nearest as position, count(*) over () as found_count
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

-- name: newest_user_turn
-- No lock. Marks are looked for one message at a time: `not exists` would be joined, and may read all marks of the session. Indexes: entries_user_idx,
-- entries_superseded_idx.
select said.seq, said.token_count, said.token_vocabulary, octet_length(said.body) + said.dropped_bytes as size_bytes
from entries said
where said.tenant_id = %(tenant_id)s and said.session_id = %(session_id)s and said.role = 'USER'
    and (
        select true from entries mark
        where mark.tenant_id = %(tenant_id)s and mark.session_id = %(session_id)s and mark.target_seq between said.seq and said.seq
            and mark.label = 'SUPERSEDED'
        order by mark.target_seq
        limit 1
    ) is null
order by said.seq desc
limit 1;

-- name: token_vocabularies_of
-- No lock. The range in order, with `keep_index_order`, leaves the planner no other index. Index: entries primary key.
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
-- No lock, no bodies but the lengths of the whole ones, newest first. Index: entries primary key, backwards.
select seq, kind, role, token_count, calls, answers, is_synthetic, label, target_seq, token_vocabulary, octet_length(body) + dropped_bytes as size_bytes
from entries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(after_seq)s and seq < %(before_seq)s
order by seq desc
limit %(row_count)s;

-- name: read_entries
-- No lock. A range scan for each run of seqs; the order, with `keep_index_order`, leaves the planner no other index. Index: entries primary key.
select
    entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash, body,
    dropped_bytes
from unnest(%(first_seqs)s::bigint[], %(last_seqs)s::bigint[]) as run (first_seq, last_seq)
cross join lateral (
    select entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service, writer_client, create_time, chain_hash,
        body, dropped_bytes
    from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between run.first_seq and run.last_seq
    order by seq
    offset 0
) as entry;
