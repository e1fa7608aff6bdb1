-- name: begin_snapshot
-- First in a transaction whose statements must all see the same moment.
set transaction isolation level repeatable read, read only;

-- name: list_entries
-- No lock. A page ends early rather than pass %(max_bytes)s of bodies, but has at least one entry. Index: entries primary key.
select entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service, create_time, chain_hash, body
from (
    select *, sum(octet_length(body)) over (order by seq) as bytes_so_far
    from (
        select *
        from entries
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(after_seq)s
        order by seq
        limit %(page_size)s
    ) as page
) as measured
where bytes_so_far <= %(max_bytes)s or seq = %(after_seq)s + 1
order by seq;

-- name: newest_user_turn
-- No lock. Indexes: entries_user_idx, entries_superseded_idx.
select said.seq, said.token_count
from entries said
where said.tenant_id = %(tenant_id)s and said.session_id = %(session_id)s and said.role = 'USER'
    and not exists (
        select from entries mark
        where mark.tenant_id = said.tenant_id and mark.session_id = said.session_id and mark.target_seq = said.seq and mark.label = 'SUPERSEDED'
    )
order by said.seq desc
limit 1;

-- name: scan_entries
-- No lock, no bodies, newest first. Index: entries primary key, backwards.
select seq, kind, role, token_count, calls, answers, is_synthetic, label, target_seq
from entries
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq < %(before_seq)s
order by seq desc
limit %(row_count)s;

-- name: read_entries
-- No lock. A range scan for each run of seqs, which the planner cannot turn into a scan of the transcript. Index: entries primary key.
select entry.*
from unnest(%(first_seqs)s::bigint[], %(last_seqs)s::bigint[]) as run (first_seq, last_seq)
cross join lateral (
    select entry_id, parent_entry_id, seq, token_count, writer_run_id, writer_epoch, writer_service, create_time, chain_hash, body
    from entries
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq between run.first_seq and run.last_seq
    offset 0
) as entry;
