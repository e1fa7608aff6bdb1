-- name: read_search_progress
-- Takes no lock. Indexes: the primary keys.
select t.incarnation, t.seq as head_seq, coalesce(p.seq, 0) as seq
from transcripts t
left join search_progress p on p.tenant_id = t.tenant_id and p.session_id = t.session_id
where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s and t.state = 'LIVE'
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s);

-- name: lock_indexed_transcript
-- Follows `join_writers`. Keeps the transcript from being deleted until the transaction
-- ends. Indexes: tenants and transcripts primary keys.
select from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and incarnation = %(incarnation)s
    and state = 'LIVE'
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
for share;

-- name: advance_search
-- Locks the row. Changes nothing if another search has indexed further. Index: search_progress
-- primary key.
insert into search_progress as p (tenant_id, session_id, seq)
values (%(tenant_id)s, %(session_id)s, %(seq)s)
on conflict (tenant_id, session_id) do update
set seq = excluded.seq
where p.seq = %(known_seq)s;

-- name: insert_search_pieces
-- Index: search_pieces primary key.
insert into search_pieces (tenant_id, session_id, seq, piece, words)
select %(tenant_id)s, %(session_id)s, seq, piece, words::tsvector
from unnest(%(seqs)s::bigint[], %(pieces)s::integer[], %(words)s::text[]) as given (seq, piece, words)
returning piece;

-- name: search_by_words
-- Reads the words of the session, newest first, until %(limit)s entries match. Ends early to stay
-- within %(max_bytes)s of complete bodies, but returns at least one entry; found_count is the
-- number of matches. An entry is found by its first piece with the first word. Takes no lock.
-- Indexes: search_pieces and entries primary keys, entries_superseded_idx.
select entry_id, seq, kind, create_time, body, dropped_bytes, found_count
from (
    select *, sum(octet_length(body) + dropped_bytes) over newest as bytes_so_far,
        row_number() over newest as position, count(*) over () as found_count
    from (
        select e.entry_id, found.seq, e.kind, e.create_time, e.body, e.dropped_bytes
        from search_pieces found
        cross join lateral (
            select entry_id, kind, role, create_time, body, dropped_bytes
            from entries
            where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = found.seq
            limit 1
        ) as e
        where found.tenant_id = %(tenant_id)s and found.session_id = %(session_id)s
            and found.seq > %(after_seq)s and found.seq < %(before_seq)s
            and found.words @@ %(first)s::tsquery
            and (
                select true from search_pieces p
                where p.tenant_id = %(tenant_id)s and p.session_id = %(session_id)s and p.seq = found.seq
                    and p.piece < found.piece and p.words @@ %(first)s::tsquery
                limit 1
            ) is null
            and (%(kinds)s::text[] is null or e.kind = any(%(kinds)s::text[]))
            and (%(roles)s::text[] is null or e.role = any(%(roles)s::text[]))
            and (%(from_time)s::timestamptz is null or e.create_time >= %(from_time)s)
            and (%(before_time)s::timestamptz is null or e.create_time < %(before_time)s)
            and (%(with_superseded)s or (
                select true from entries mark
                where mark.tenant_id = %(tenant_id)s and mark.session_id = %(session_id)s
                    and mark.target_seq = found.seq and mark.label = 'SUPERSEDED'
                limit 1
            ) is null)
            and (
                select true from unnest(%(wanted)s::text[]) as term
                where (
                    select true from search_pieces p
                    where p.tenant_id = %(tenant_id)s and p.session_id = %(session_id)s
                        and p.seq = found.seq and p.words @@ term::tsquery
                    limit 1
                ) is null
                limit 1
            ) is null
            and (
                select true from unnest(%(excluded)s::text[]) as term
                where (
                    select true from search_pieces p
                    where p.tenant_id = %(tenant_id)s and p.session_id = %(session_id)s
                        and p.seq = found.seq and p.words @@ term::tsquery
                    limit 1
                )
                limit 1
            ) is null
        order by found.seq desc
        limit (select %(limit)s::bigint)
    ) as page
    window newest as (order by seq desc)
) as measured
where bytes_so_far <= %(max_bytes)s or position = 1
order by seq desc;

-- name: measure_window
-- Measures the text to read, and no more than %(limit)s entries of it. Takes no lock. Index:
-- entries primary key.
select count(*) as entry_count, coalesce(sum(size), 0)::bigint as byte_count
from (
    select octet_length(e.body) + e.dropped_bytes as size
    from entries e
    where e.tenant_id = %(tenant_id)s and e.session_id = %(session_id)s and e.seq > %(after_seq)s
        and e.seq < %(before_seq)s
    order by e.seq
    limit (select %(limit)s::bigint)
) as measured;

-- name: read_window
-- Reads entries, newest first. Takes no lock. Indexes: entries primary key, entries_superseded_idx.
select e.entry_id, e.seq, e.kind, e.create_time, e.body, e.dropped_bytes
from entries e
where e.tenant_id = %(tenant_id)s and e.session_id = %(session_id)s and e.seq > %(after_seq)s
    and e.seq < %(before_seq)s
    and (%(kinds)s::text[] is null or e.kind = any(%(kinds)s::text[]))
    and (%(roles)s::text[] is null or e.role = any(%(roles)s::text[]))
    and (%(from_time)s::timestamptz is null or e.create_time >= %(from_time)s)
    and (%(before_time)s::timestamptz is null or e.create_time < %(before_time)s)
    and (%(with_superseded)s or not exists (
        select from entries mark
        where mark.tenant_id = %(tenant_id)s and mark.session_id = e.session_id and mark.target_seq = e.seq
            and mark.label = 'SUPERSEDED'
    ))
order by e.seq desc;
