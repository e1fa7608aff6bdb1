-- name: find_calls
-- Reads at most %(row_count)s entries back, newest first. Takes no lock. Index: entries primary
-- key, backwards.
with nearest as (
    select coalesce(%(before_seq)s, t.seq + 1) as before_seq
    from transcripts t
    where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s
)
select seq, calls
from entries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and role = 'ASSISTANT'
    and calls && %(call_ids)s::text[]
    and seq >= (select n.before_seq - %(row_count)s from nearest n)
    and seq < (select n.before_seq from nearest n)
order by seq desc;

-- name: list_unstored_payloads
-- Lists payloads that the blob store may not have, of some entries of a readable transcript: up to
-- %(file_count)s for each entry. Takes no lock. Indexes: payloads_unstored_idx, payloads, entries
-- and transcripts primary keys.
select p.blob_id, w.seq, p.block_index, p.mime_type, e.token_count, e.stored_bytes
from (
    select distinct page.seq
    from (
        select seq
        from payloads
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and not is_stored and not is_releasing
        limit (select %(row_count)s::bigint)
    ) as page
) as w
cross join lateral (
    select blob_id, block_index, mime_type
    from payloads
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = w.seq
        and not is_stored and not is_releasing
    order by block_index
    limit (select %(file_count)s::bigint)
) as p
cross join lateral (
    select token_count, octet_length(body) as stored_bytes
    from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = w.seq
    limit 1
) as e
where exists (
    select from transcripts t where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s
        and t.state = 'LIVE'
);

-- name: count_unstored_entries
-- Counts entries, up to a seq if one is given, with payloads that the blob store may not have.
-- Takes no lock. Index: payloads_unstored_idx.
select count(distinct seq) as entry_count
from payloads
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and not is_stored and not is_releasing
    and seq <= coalesce(%(last_seq)s::bigint, seq);

-- name: lock_stubs
-- Locks the stubs of the entries that have these payloads, in the order of their seqs, until
-- commit. Indexes: payloads_blob_idx, stubs primary key.
select s.seq
from (
    select distinct p.seq
    from unnest(%(blob_ids)s::text[]) as named (blob_id)
    cross join lateral (
        select seq
        from payloads
        where tenant_id = %(tenant_id)s and blob_id = named.blob_id
        limit 1
    ) as p
    order by p.seq
) as held
cross join lateral (
    select seq
    from stubs
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = held.seq
    limit 1
    for no key update
) as s;

-- name: mark_stored
-- Locks the row. Changes nothing if the payload is being released.
-- Indexes: payloads_blob_idx, payloads primary key.
update payloads
set is_stored = true
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and blob_id = %(blob_id)s
    and not is_stored and not is_releasing
    and seq = (select seq from payloads where tenant_id = %(tenant_id)s and blob_id = %(blob_id)s)
    and block_index = (
        select block_index from payloads where tenant_id = %(tenant_id)s and blob_id = %(blob_id)s
    );

-- name: enable_stubs
-- The transaction holds these stubs. A stub may be used once all payloads of its entry are
-- stored; returns the stubs for which this is now true. The least and the greatest seq bound the
-- scan. Indexes: stubs and payloads primary keys.
with usable as (
    update stubs s
    set is_stored = true
    where s.tenant_id = %(tenant_id)s and s.session_id = %(session_id)s and not s.is_stored
        and s.seq between (select min(held.seq) from unnest(%(seqs)s::bigint[]) as held (seq))
        and (select max(held.seq) from unnest(%(seqs)s::bigint[]) as held (seq))
        and s.seq = any(array(
            select held.seq
            from unnest(%(seqs)s::bigint[]) as held (seq)
            where (
                select bool_and(is_stored)
                from payloads
                where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = held.seq
            )
        ))
    returning s.seq, s.token_count
)
select u.seq, u.token_count, file.tool_name, file.blob_ids, file.size_bytes
from usable u
cross join lateral (
    select min(tool_name) as tool_name, array_agg(blob_id order by block_index) as blob_ids,
        sum(size_bytes)::bigint as size_bytes
    from payloads
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = u.seq
) as file;

-- name: scan_stubs
-- Reads lengths of bodies and no bodies. Takes no lock. Index: stubs primary key.
select seq, token_count, octet_length(body) as size_bytes, is_stored, file_id <> '' as is_condensed,
    thinking_token_count
from stubs
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between %(first_seq)s and %(last_seq)s
order by seq;

-- name: read_stubs
-- Takes no lock. One range scan for each run of seqs. Index: stubs primary key.
select stub.seq, stub.token_count, stub.body, stub.file_id
from unnest(%(first_seqs)s::bigint[], %(last_seqs)s::bigint[]) as run (first_seq, last_seq)
cross join lateral (
    select seq, token_count, body, file_id
    from stubs
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
        and seq between run.first_seq and run.last_seq
    limit run.last_seq - run.first_seq + 1
) as stub;

-- name: list_stored_files
-- Takes no lock. Each entry is looked up by itself. Index: payloads primary key.
select wanted.seq, p.block_index, p.blob_id, p.size_bytes
from unnest(%(seqs)s::bigint[]) as wanted (seq)
cross join lateral (
    select block_index, blob_id, size_bytes
    from payloads
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = wanted.seq
        and is_stored and not is_releasing
    order by block_index
) as p;

-- name: read_payload
-- Takes no lock. Indexes: payloads_blob_idx, purged_tenants, transcripts and entries primary keys.
select p.blob_id, p.session_id, p.seq, p.block_index, p.tool_name, p.about, p.mime_type, p.size_bytes,
    p.line_count, p.sha256, p.is_stored, e.entry_id, e.create_time
from (
    select *
    from payloads
    where tenant_id = %(tenant_id)s and blob_id = %(blob_id)s
    limit 1
) as p
cross join lateral (
    select state
    from transcripts
    where tenant_id = %(tenant_id)s and session_id = p.session_id
    limit 1
) as t
cross join lateral (
    select entry_id, create_time
    from entries
    where tenant_id = %(tenant_id)s and session_id = p.session_id and seq = p.seq
    limit 1
) as e
where t.state = 'LIVE' and not p.is_releasing
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s);

-- name: read_condensed_entry
-- Takes no lock. Indexes: stubs_file_idx, purged_tenants, transcripts and entries primary keys.
select s.session_id, s.seq, e.entry_id, e.create_time
from (
    select session_id, seq
    from stubs
    where tenant_id = %(tenant_id)s and file_id = %(file_id)s and file_id <> ''
    limit 1
) as s
cross join lateral (
    select state
    from transcripts
    where tenant_id = %(tenant_id)s and session_id = s.session_id
    limit 1
) as t
cross join lateral (
    select entry_id, create_time
    from entries
    where tenant_id = %(tenant_id)s and session_id = s.session_id and seq = s.seq
    limit 1
) as e
where t.state = 'LIVE' and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s);

-- name: list_payloads_to_release
-- Lists payloads of a transcript without writers. Takes no lock. Index: payloads primary key.
select blob_id from payloads
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
order by seq, block_index
limit (select %(row_count)s::bigint);

-- name: delete_payload
-- Locks the row. Indexes: payloads_blob_idx, payloads primary key.
delete from payloads
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and blob_id = %(blob_id)s
    and seq = (select seq from payloads where tenant_id = %(tenant_id)s and blob_id = %(blob_id)s)
    and block_index = (
        select block_index from payloads where tenant_id = %(tenant_id)s and blob_id = %(blob_id)s
    );
