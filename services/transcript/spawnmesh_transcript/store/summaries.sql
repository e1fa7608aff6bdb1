-- name: read_newest_summary
-- Returns the summary in force. Takes no lock. Index: summaries primary key, backwards.
select seq, entry_id, first_source_seq, last_source_seq, previous_seq, source_entry_count, source_token_count,
    covered_turn_count, covered_token_count, token_count, method, model, run_id
from summaries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
order by seq desc
limit 1;

-- name: read_summary_at
-- Returns the summary that was in force when the transcript ended at %(up_to_seq)s. Takes no lock.
-- Index: summaries primary key, backwards.
select seq, entry_id, first_source_seq, last_source_seq, previous_seq, source_entry_count, source_token_count,
    covered_turn_count, covered_token_count, token_count, method, model, run_id
from summaries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq <= %(up_to_seq)s
order by seq desc
limit 1;

-- name: find_summary
-- Finds a summary of a readable transcript, which has few. Takes no lock. Indexes: summaries and
-- transcripts primary keys.
select s.seq, s.entry_id, s.first_source_seq, s.last_source_seq, s.previous_seq, s.source_entry_count,
    s.source_token_count, s.covered_turn_count, s.covered_token_count, s.token_count, s.method, s.model,
    s.run_id
from summaries s
join transcripts t on t.tenant_id = s.tenant_id and t.session_id = s.session_id and t.state = 'LIVE'
where s.tenant_id = %(tenant_id)s and s.session_id = %(session_id)s and s.entry_id = %(entry_id)s
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s);

-- name: count_superseded
-- Counts superseded messages and notes behind a seq, each once. Takes no lock.
-- Indexes: entries_superseded_idx, entries primary key.
select count(*) as superseded_count
from (
    select distinct target_seq from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and target_seq > %(after_seq)s
        and label = 'SUPERSEDED'
) as marked
where (
    select said.kind from entries said
    where said.tenant_id = %(tenant_id)s and said.session_id = %(session_id)s
        and said.seq = marked.target_seq
    limit 1
) in ('MESSAGE', 'NOTE');

-- name: count_superseded_at
-- Counts the messages and notes behind a seq that were superseded when the transcript ended at
-- %(up_to_seq)s, each once. Takes no lock.
-- Indexes: entries_superseded_idx, entries primary key.
select count(*) as superseded_count
from (
    select distinct target_seq from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and target_seq > %(after_seq)s
        and label = 'SUPERSEDED' and seq <= %(up_to_seq)s
) as marked
where (
    select said.kind from entries said
    where said.tenant_id = %(tenant_id)s and said.session_id = %(session_id)s
        and said.seq = marked.target_seq
    limit 1
) in ('MESSAGE', 'NOTE');

-- name: read_summary_token_count
-- Takes no lock. Index: summaries primary key.
select token_count from summaries where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and seq = %(seq)s;

-- name: scan_sources
-- Reads stored lengths and no bodies, oldest first. Takes no lock.
-- Indexes: entries primary key, entries_superseded_idx.
select said.seq, said.kind, said.role, said.token_count, said.calls, said.answers, said.is_synthetic,
    said.seq in (
        select target_seq from entries
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and target_seq > %(after_seq)s
            and label = 'SUPERSEDED'
        order by target_seq
    ) as is_superseded,
    octet_length(said.body) as size_bytes
from entries said
where said.tenant_id = %(tenant_id)s and said.session_id = %(session_id)s and said.seq > %(after_seq)s
    and said.kind in ('MESSAGE', 'NOTE')
order by said.seq
limit (select %(row_count)s::bigint);

-- name: list_sources
-- Lists the sources of a summary, including entries that were superseded from
-- %(marked_before_seq)s on. A page ends early to stay within %(max_bytes)s of complete bodies, but
-- has at least one entry. found_count is one more than the page if there are more entries. Takes no
-- lock. Indexes: entries primary key, entries_superseded_idx.
select
    entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service, writer_client,
    create_time, chain_hash, body, dropped_bytes, found_count
from (
    select *, sum(octet_length(body) + dropped_bytes) over nearest as bytes_so_far,
        row_number() over nearest as position, count(*) over () as found_count
    from (
        select *
        from entries said
        where said.tenant_id = %(tenant_id)s and said.session_id = %(session_id)s and said.seq > %(after_seq)s
            and said.seq <= %(last_source_seq)s
            and said.kind in ('MESSAGE', 'NOTE') and said.seq not in (
                select target_seq from entries
                where tenant_id = %(tenant_id)s and session_id = %(session_id)s and target_seq > %(after_seq)s
                    and target_seq <= %(last_source_seq)s and label = 'SUPERSEDED'
                    and seq < %(marked_before_seq)s
                order by target_seq
            )
        order by said.seq
        limit (select %(page_size)s::bigint + 1)
    ) as page
    window nearest as (order by seq)
) as measured
where position <= %(page_size)s and (bytes_so_far <= %(max_bytes)s or position = 1)
order by seq;

-- name: read_kept
-- Returns the first message or note behind a seq that is not superseded, the tokens of all such
-- entries, and the tokens of all messages and notes up to the seq. The totals give the tokens
-- behind the seq: it reads only the entries since the newest summary's sources up to the seq,
-- and superseded ones behind it, without bodies. The transaction holds the transcript's row or
-- reads one snapshot. Indexes: the primary keys, entries_superseded_idx.
select
    coalesce(kept.entry_id, '') as first_entry_id,
    t.token_count - covered.token_count - superseded.token_count as token_count,
    covered.token_count as covered_token_count
from transcripts t
left join lateral (
    select said.entry_id
    from entries said
    where said.tenant_id = %(tenant_id)s and said.session_id = %(session_id)s and said.seq > %(after_seq)s
        and said.kind in ('MESSAGE', 'NOTE')
        and (
            select true from entries mark
            where mark.tenant_id = %(tenant_id)s and mark.session_id = %(session_id)s
                and mark.target_seq = said.seq
                and mark.label = 'SUPERSEDED'
            limit 1
        ) is null
    order by said.seq
    limit (select 1)
) as kept on true
left join lateral (
    select s.covered_token_count, s.last_source_seq
    from summaries s
    where s.tenant_id = %(tenant_id)s and s.session_id = %(session_id)s
    order by s.seq desc
    limit 1
) as newest on true
cross join lateral (
    -- A subquery makes it a value: under row-level security, such an expression uses no index.
    select coalesce(newest.last_source_seq, 0) as last_source_seq
    limit 1
) as summarized
cross join lateral (
    select coalesce(newest.covered_token_count, 0) + coalesce(sum(said.token_count), 0)::bigint as token_count
    from entries said
    where said.tenant_id = %(tenant_id)s and said.session_id = %(session_id)s
        and said.seq > summarized.last_source_seq and said.seq <= %(after_seq)s
        and said.kind in ('MESSAGE', 'NOTE')
) as covered
cross join lateral (
    select coalesce(sum(said.token_count), 0)::bigint as token_count
    from (
        select distinct target_seq as seq from entries
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and target_seq > %(after_seq)s
            and label = 'SUPERSEDED'
    ) as marked
    cross join lateral (
        select e.kind, e.token_count
        from entries e
        where e.tenant_id = %(tenant_id)s and e.session_id = %(session_id)s
            and e.seq = marked.seq
        limit 1
    ) as said
    where said.kind in ('MESSAGE', 'NOTE')
) as superseded
where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s;

-- name: lock_transcript
-- Locks the transcript's row until commit. Index: transcripts primary key.
select incarnation, seq, chain_hash, writer_run_id, writer_epoch
from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE'
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
for update;

-- name: insert_summary
-- The transaction holds the transcript's row. Index: summaries primary key.
insert into summaries (
    tenant_id, session_id, seq, entry_id, first_source_seq, last_source_seq, previous_seq, source_entry_count,
    source_token_count, covered_turn_count, covered_token_count, token_count, method, model, run_id
) values (
    %(tenant_id)s, %(session_id)s, %(seq)s, %(entry_id)s, %(first_source_seq)s, %(last_source_seq)s,
    %(previous_seq)s, %(source_entry_count)s, %(source_token_count)s, %(covered_turn_count)s,
    %(covered_token_count)s, %(token_count)s, %(method)s, %(model)s, %(run_id)s
);

-- name: read_published_summary
-- Returns a summary as observers receive it, with the body of its entry. Returns no row if the
-- transcript or the summary was deleted, or the tenant is being purged. Takes no lock. Indexes:
-- summaries, transcripts and entries primary keys.
select s.session_id, s.entry_id, s.source_entry_count, s.source_token_count, s.token_count, s.method, s.model,
    s.run_id, e.create_time, e.body
from summaries s
join transcripts t on t.tenant_id = s.tenant_id and t.session_id = s.session_id and t.state = 'LIVE'
join entries e on e.tenant_id = s.tenant_id and e.session_id = s.session_id and e.seq = s.seq
where s.tenant_id = %(tenant_id)s and s.session_id = %(session_id)s and s.seq = %(seq)s
    and s.entry_id = %(entry_id)s
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s);
