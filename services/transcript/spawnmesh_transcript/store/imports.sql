-- name: insert_importing_transcript
-- Waits for a transaction that inserts or deletes the same transcript. Index: transcripts
-- primary key.
insert into transcripts (tenant_id, session_id, incarnation, forked_from_session_id, state)
values (%(tenant_id)s, %(session_id)s, %(incarnation)s, '', 'IMPORTING')
on conflict do nothing
returning incarnation;

-- name: insert_import
-- Follows the insert of its transcript. Index: imports primary key.
insert into imports (tenant_id, session_id) values (%(tenant_id)s, %(session_id)s);

-- name: lock_import
-- Locks the transcript's row of this import, before every other row of it, as a deletion does.
-- Index: transcripts primary key.
select from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and incarnation = %(incarnation)s
    and state = 'IMPORTING'
for update;

-- name: read_import
-- Takes no lock. Indexes: the primary keys.
select
    i.state, i.byte_count, i.line_count, i.entry_count, i.malformed, i.newest_source_id, i.leaf_entry_id,
    i.is_branched, i.line_chain, i.dialect, i.memory, i.compaction_ids, t.incarnation
from imports i
join transcripts t on t.tenant_id = i.tenant_id and t.session_id = i.session_id
where i.tenant_id = %(tenant_id)s and i.session_id = %(session_id)s
    and (t.state = 'IMPORTING') <> (i.state = 'COMPLETE');

-- name: advance_import
-- Locks the row if the import is where the caller read it, of the same bytes. Needs
-- `lock_import`. Index: imports primary key.
update imports
set byte_count = %(byte_count)s, line_count = %(line_count)s, entry_count = %(entry_count)s,
    malformed = %(malformed)s, newest_source_id = %(newest_source_id)s, leaf_entry_id = %(leaf_entry_id)s,
    is_branched = %(is_branched)s, line_chain = %(line_chain)s, dialect = %(dialect)s, memory = %(memory)s,
    compaction_ids = %(compaction_ids)s, update_time = now()
where
    tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'IMPORTING'
    and byte_count = %(known_byte_count)s
    and line_chain = %(known_line_chain)s;

-- name: find_entry_seqs
-- Returns those of the ids that the transcript has. Takes no lock. An id is looked up without the
-- session: see `targets` of appends. Index: entries_id_idx.
select known.entry_id, known.seq
from unnest(%(entry_ids)s::text[]) as wanted (entry_id)
cross join lateral (
    select session_id, entry_id, seq from entries
    where tenant_id = %(tenant_id)s and entry_id = wanted.entry_id
    limit 1
) as known
where known.session_id = %(session_id)s;

-- name: complete_import
-- Locks the row if the import is where the caller read it. Needs `lock_import`. Index: imports
-- primary key.
update imports
set state = 'COMPLETE', update_time = now()
where
    tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'IMPORTING'
    and byte_count = %(known_byte_count)s
    and line_chain = %(known_line_chain)s;

-- name: publish_transcript
-- Locks the transcript's row. Index: transcripts primary key.
update transcripts
set state = 'LIVE'
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'IMPORTING';

-- name: list_messages_off_branch
-- Lists the messages that are not ancestors of the leaf. Takes no lock. An id is looked up without
-- the session: see `targets` of appends. The branch is hashed once. Indexes: entries_id_idx,
-- entries primary key.
with recursive branch as (
    select %(leaf_entry_id)s::text as entry_id
    union
    select e.parent_entry_id
    from branch b
    cross join lateral (
        select session_id, parent_entry_id from entries
        where tenant_id = %(tenant_id)s and entry_id = b.entry_id
        limit 1
    ) as e
    where e.session_id = %(session_id)s
)
select entry_id
from entries e
where e.tenant_id = %(tenant_id)s and e.session_id = %(session_id)s and e.kind = 'MESSAGE'
    and e.entry_id not in (select b.entry_id from branch b)
order by e.seq;

-- name: find_newest_on_branch
-- Returns the newest of the entries that is an ancestor of the leaf, or the leaf. Takes no lock. An
-- id is looked up without the session: see `targets` of appends. Index: entries_id_idx.
with recursive branch as (
    select e.entry_id, e.parent_entry_id, e.seq
    from (
        select session_id, entry_id, parent_entry_id, seq from entries
        where tenant_id = %(tenant_id)s and entry_id = %(leaf_entry_id)s
        limit 1
    ) as e
    where e.session_id = %(session_id)s
    union
    select e.entry_id, e.parent_entry_id, e.seq
    from branch b
    cross join lateral (
        select session_id, entry_id, parent_entry_id, seq from entries
        where tenant_id = %(tenant_id)s and entry_id = b.parent_entry_id
        limit 1
    ) as e
    where e.session_id = %(session_id)s
)
select entry_id
from branch
where entry_id = any(%(entry_ids)s::text[])
order by seq desc
limit 1;

-- name: insert_imported_summary
-- Reads the columns of all entries up to %(last_source_seq)s once, without bodies. Observers are
-- not notified. Needs `lock_import`. Indexes: entries primary key, entries_superseded_idx.
insert into summaries (
    tenant_id, session_id, seq, entry_id, first_source_seq, last_source_seq, source_entry_count,
    source_token_count, covered_turn_count, covered_token_count, token_count, method, model, run_id
)
select
    %(tenant_id)s, %(session_id)s, %(seq)s, %(entry_id)s, 1, %(last_source_seq)s,
    count(*) filter (where not is_superseded),
    coalesce(sum(token_count) filter (where not is_superseded), 0), count(*), coalesce(sum(token_count), 0),
    %(token_count)s, 'IMPORTED', '', ''
from (
    select said.kind, said.token_count,
        said.seq in (
            select target_seq from entries
            where tenant_id = %(tenant_id)s and session_id = %(session_id)s and label = 'SUPERSEDED'
            order by target_seq
        ) as is_superseded
    from entries said
    where said.tenant_id = %(tenant_id)s and said.session_id = %(session_id)s
        and said.seq <= %(last_source_seq)s
) as covered
where kind in ('MESSAGE', 'NOTE')
returning seq;

-- name: abort_import
-- Locks the row if the import made no progress for %(age_seconds)s. Needs `lock_import`. Index:
-- imports primary key.
update imports
set state = 'ABORTED'
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state <> 'COMPLETE'
    and (%(age_seconds)s::float8 = 0 or update_time < now() - make_interval(secs => %(age_seconds)s));

-- name: delete_importing_transcript
-- Needs `lock_import`. Index: transcripts primary key.
delete from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and incarnation = %(incarnation)s
    and state = 'IMPORTING';

-- name: delete_aborted_import
-- Locks the row. Needs `lock_import`. Index: imports primary key.
delete from imports
where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'ABORTED';

-- name: list_stale_imports
-- Takes no lock. Each transcript is looked up by itself and not joined. Indexes: imports_stale_idx,
-- transcripts primary key.
select i.session_id, t.incarnation
from imports i
cross join lateral (
    select incarnation, state
    from transcripts
    where tenant_id = %(tenant_id)s and session_id = i.session_id
    limit 1
) as t
where i.tenant_id = %(tenant_id)s and i.state <> 'COMPLETE'
    and i.update_time < now() - make_interval(secs => %(age_seconds)s)
    and t.state = 'IMPORTING'
order by i.update_time
limit 10;
