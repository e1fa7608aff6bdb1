-- name: list_entries_after
-- Takes no lock. Looks at the entries up to %(end_seq)s. A page ends early to stay within
-- %(max_bytes)s of complete bodies, but has at least one entry. found_count is one more than the
-- page if there are more entries among them. Index: entries primary key.
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
            and seq <= %(end_seq)s
            and (%(kinds)s::text[] is null or kind = any(%(kinds)s::text[]))
            and (%(roles)s::text[] is null or role = any(%(roles)s::text[]))
        order by seq
        limit (select %(page_size)s::bigint + 1)
    ) as page
    window nearest as (order by seq)
) as measured
where position <= %(page_size)s and (bytes_so_far <= %(max_bytes)s or position = 1)
order by seq;

-- name: list_entries_before
-- As `list_entries_after`, newest first, down to %(end_seq)s. Takes no lock. Index: entries primary
-- key, backwards.
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
            and seq >= %(end_seq)s
            and (%(kinds)s::text[] is null or kind = any(%(kinds)s::text[]))
            and (%(roles)s::text[] is null or role = any(%(roles)s::text[]))
        order by seq desc
        limit (select %(page_size)s::bigint + 1)
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
            and mark.target_seq = said.seq
            and mark.label = 'SUPERSEDED'
        limit 1
    ) is null
order by said.seq desc
limit (select 1);

-- name: read_user_turn_at
-- Returns the message of a user that was the newest one, and not superseded, when the transcript
-- ended at %(up_to_seq)s. Takes no lock. The marks are read
-- one message at a time: `not exists` would be joined, and could read all marks of the session.
-- Indexes: entries_user_idx, entries_superseded_idx.
select said.seq, said.token_count, said.token_vocabulary,
    octet_length(said.body) + said.dropped_bytes as size_bytes
from entries said
where said.tenant_id = %(tenant_id)s and said.session_id = %(session_id)s and said.role = 'USER'
    and said.seq <= %(up_to_seq)s
    and (
        select true from entries mark
        where mark.tenant_id = %(tenant_id)s and mark.session_id = %(session_id)s
            and mark.target_seq = said.seq
            and mark.label = 'SUPERSEDED' and mark.seq <= %(up_to_seq)s
        limit 1
    ) is null
order by said.seq desc
limit (select 1);

-- name: read_totals_at
-- Counts the messages and notes behind a seq, up to another one, and their tokens. Reads no bodies.
-- Takes no lock. Index: entries primary key.
select count(*) as turn_count, coalesce(sum(token_count), 0)::bigint as token_count
from entries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
    and seq > %(after_seq)s and seq <= %(up_to_seq)s and kind in ('MESSAGE', 'NOTE');

-- name: read_token_vocabularies
-- Takes no lock. Index: entries primary key.
select entry.seq, entry.token_vocabulary
from unnest(%(seqs)s::bigint[]) as wanted (seq)
cross join lateral (
    select seq, token_vocabulary
    from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = wanted.seq
    limit 1
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
limit (select %(row_count)s::bigint);

-- name: read_behind_fork
-- Reads from the entries behind a seq which of these calls have a result there, and which drafts up
-- to it were superseded. Reads no bodies. Takes no lock. Index: entries primary key.
select
    coalesce(
        array_agg(answers order by seq) filter (where answers = any(%(calls)s::text[])), '{}'
    ) as answered_calls,
    coalesce(
        array_agg(target_seq) filter (where label = 'SUPERSEDED' and target_seq <= %(seq)s), '{}'
    ) as superseded_seqs
from entries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(seq)s;

-- name: read_entries_in_part
-- As `read_entries`, but it does not read the bodies for which %(is_bodiless)s is true. These flags
-- are in the order of all seqs; those of a run begin behind first_place. Takes no lock. Index:
-- entries primary key.
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
    limit run.last_seq - run.first_seq + 1
) as entry;

-- name: read_entries
-- Takes no lock. One range scan for each run of seqs. Index: entries primary key.
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
    limit run.last_seq - run.first_seq + 1
) as entry;

-- name: scan_window
-- Returns the head, the chain hash of the entry before %(from_seq)s (null if there is none), and
-- beside them the entries from %(from_seq)s to the head, in no particular order: at most
-- %(row_count)s, and at most %(max_bytes)s of complete bodies, but always the first. One row
-- without an entry if there are none; no row if there is no transcript. All rows are of one
-- snapshot. Takes no lock. Cost: the returned entries. Indexes: the primary keys.
select
    t.incarnation, t.seq as head_seq, t.chain_hash as head_chain_hash, t.writer_run_id as head_run_id,
    t.writer_epoch as head_epoch,
    before.chain_hash as before_chain_hash, found.seq, found.entry_id, found.parent_entry_id, found.kind,
    found.role, found.writer_run_id, found.writer_epoch, found.writer_service, found.writer_client,
    found.create_time, found.chain_hash, found.body, found.dropped_bytes
from transcripts t
left join lateral (
    select chain_hash
    from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq = %(from_seq)s - 1
    limit 1
) as before on true
left join lateral (
    select * from (
        select page.*,
            sum(octet_length(page.body) + page.dropped_bytes) over (order by page.seq) as bytes_so_far
        from (
            select *
            from entries
            where tenant_id = %(tenant_id)s and session_id = %(session_id)s
                and seq >= %(from_seq)s and seq < %(from_seq)s + %(row_count)s
            order by seq
        ) as page
    ) as measured
    where measured.bytes_so_far <= %(max_bytes)s or measured.seq = %(from_seq)s
) as found on true
where t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s and t.state = 'LIVE'
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s);

-- name: scan_sizes
-- Reads no bodies, oldest first. Takes no lock. Index: entries primary key.
select seq, role, octet_length(body) as stored_bytes, dropped_bytes
from entries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(after_seq)s
order by seq
limit (select %(row_count)s::bigint);
