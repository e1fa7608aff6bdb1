-- `append` writes all entries of some calls. The fragments behind it are put in where it names
-- them, if an append needs them: PostgreSQL prepares each lookup of a plan in every run, also one
-- that no entry needs. An append of one entry that refers to no other, as nearly all are, needs
-- none.

-- name: append
-- Appends the entries of each call behind the head of its transcript, all or none; at most one call
-- for each transcript.
--
-- Returns a row for each call whose transcript it locked: the head, and with `is_made` false the
-- values that decide why the call left nothing behind. They decide nothing unless `is_new` is true:
-- no key was used, nor could it have been since the statement began. A call without a row left
-- nothing either: there is no such transcript, or, with `skip_locked`, another transaction holds
-- its row. The preconditions of a call, where it has them: its claim is current; the tenant's
-- settings are those under which its entries were prepared, and it is not being purged; no key was
-- used; all of its targets exist.
--
-- Each step takes the rows of the one before: the transcript's row as it is once it is locked,
-- which may be newer than the snapshot; the key, if it is new; the entries; the head. The head
-- moves by an insert that conflicts, which updates the newest version of the locked row and finds
-- it by the primary key. Lookups of one row are limited to it, so that they are not joined.
--
-- Locks the rows of transcripts until commit: with `skip_locked`, those that no other transaction
-- holds, and never waits.
-- Indexes: the primary keys; those of `targets` for entries with a target.
with held as (
    select c.*, t.*, tenant.*, clock_timestamp() as moment
    from jsonb_to_recordset(%(calls)s::jsonb) as c (
        session_id text, settings_version bigint, run_id text, epoch bigint, service text, client text,
        {key_columns}, entries jsonb, entry_count integer, token_count bigint, byte_count bigint,
        turn_count bigint{call_columns}{fence_columns}{release_column}
    )
    cross join (
        select coalesce(max(settings_version), 0) as settings,
            exists (select 1 from purged_tenants where tenant_id = %(tenant_id)s) as is_purging
        from tenants
        where tenant_id = %(tenant_id)s
    ) as tenant
    cross join lateral (
        select incarnation, seq as head_seq, chain_hash as head_hash, newest_entry_id, writer_run_id,
            writer_epoch
        from transcripts
        where tenant_id = %(tenant_id)s and session_id = c.session_id and state = {state}
        limit 1
        for update {skip_locked}
    ) as t
){targets}, call as (
    select c.* from held c
    where (c.settings_version is null or (c.settings_version = c.settings and not c.is_purging))
        and (c.run_id is null or (c.writer_run_id = c.run_id and c.writer_epoch = c.epoch))
        {is_at_fence} {keys_are_new} {targets_exist}
), kept as (
    insert into appends (
        tenant_id, session_id, request_id, content_hash, first_seq, last_seq, writer_run_id,
        writer_epoch
    )
    select %(tenant_id)s, c.session_id, {keys}
    returning session_id
), linked as (
    select l.*, {chain_hash} as chain_hash
    from (
        select p.*, case when p.place = 0 then p.head_hash else '' end || convert_to(concat_ws(
                E'\n', p.entry_id, p.parent_id, coalesce(p.run_id, ''), coalesce(p.epoch, 0), p.service,
                (extract(epoch from p.moment) * 1000000)::bigint, octet_length(p.client), p.client, ''
            ), 'UTF8') || p.body as link
        from (
            select c.session_id, c.run_id, c.epoch, c.service, c.client, c.head_seq, c.head_hash, c.moment,
                e.*, c.head_seq + 1 + e.place as seq,
                coalesce(e.parent_entry_id, c.newest_entry_id) as parent_id,
                substr(%(bodies)b, e.first_byte, e.body_size) as body
            from call c
            cross join lateral jsonb_to_recordset(c.entries) as e (
                place integer, entry_id text, parent_entry_id text, kind text, role text,
                token_count integer, token_vocabulary text, calls text[], answers text,
                is_synthetic boolean, label text, first_byte integer, body_size integer{entry_columns}
            )
            where {is_kept}
        ) as p
    ) as l
), written as (
    insert into entries (
        tenant_id, session_id, seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers,
        is_synthetic, label, target_seq, writer_run_id, writer_epoch, writer_service, writer_client,
        create_time, chain_hash, body, token_vocabulary
    )
    select %(tenant_id)s, session_id, seq, entry_id, parent_id, kind, coalesce(role, ''), token_count,
        coalesce(calls, '{}'), coalesce(answers, ''), coalesce(is_synthetic, false), coalesce(label, ''),
        {target_seq}, coalesce(run_id, ''), coalesce(epoch, 0), service, client, moment, chain_hash, body,
        token_vocabulary
    from linked l
    returning seq
){stubs}, moved as (
    insert into transcripts as t (
        tenant_id, session_id, incarnation, forked_from_session_id, seq, chain_hash, newest_entry_id,
        token_count, logical_bytes, turn_count, superseded_turn_count{writer_column}
    )
    select %(tenant_id)s, c.session_id, '', '', l.seq, l.chain_hash, l.entry_id, c.token_count, c.byte_count,
        c.turn_count, {superseded_turn_count}{writer_after}
    from call c
    join linked l on l.session_id = c.session_id and l.place = c.entry_count - 1
    on conflict (tenant_id, session_id) do update set
        seq = excluded.seq, chain_hash = excluded.chain_hash, newest_entry_id = excluded.newest_entry_id,
        token_count = t.token_count + excluded.token_count,
        logical_bytes = t.logical_bytes + excluded.logical_bytes,
        turn_count = t.turn_count + excluded.turn_count,
        superseded_turn_count = t.superseded_turn_count + excluded.superseded_turn_count{writer_update}
    returning t.session_id, t.seq, t.chain_hash
){retracted}
select c.session_id, c.incarnation, coalesce(m.seq, c.head_seq) as seq,
    coalesce(m.chain_hash, c.head_hash) as chain_hash, {writer_of_head} as writer_run_id, c.writer_epoch,
    c.settings, c.is_purging, m.seq is not null as is_made,
    m.seq is null and c.head_seq = (
        select seq from transcripts where tenant_id = %(tenant_id)s and session_id = c.session_id
    ) and {used_key} is null as is_new{chain_hashes}
from held c
left join moved m on m.session_id = c.session_id;

-- name: key_columns
-- A fragment of `append`: each call is one append.
key text, hash text

-- name: keys
-- A fragment of `append`: each call is one append.
c.key, decode(c.hash, 'hex'), c.head_seq + 1, c.head_seq + c.entry_count,
    c.writer_run_id, c.writer_epoch
from call c
where c.key is not null
on conflict do nothing

-- name: is_kept
-- A fragment of `append`: each call is one append.
c.key is null or c.session_id in (select session_id from kept)

-- name: used_key
-- A fragment of `append`: each call is one append.
(
    select true from appends
    where tenant_id = %(tenant_id)s and session_id = c.session_id and request_id = c.key
)

-- name: key_columns_of_several
-- A fragment of `append`: a call has the entries of several appends.
keys text[], hashes text[], first_places integer[], last_places integer[]

-- name: keys_of_several
-- A fragment of `append`: a call has the entries of several appends. The statement fails if one of
-- the keys was used by a transaction that it does not see.
k.key, decode(k.hash, 'hex'), c.head_seq + 1 + k.first_place,
    c.head_seq + 1 + k.last_place, c.writer_run_id, c.writer_epoch
from call c
cross join lateral unnest(c.keys, c.hashes, c.first_places, c.last_places)
    as k (key, hash, first_place, last_place)

-- name: used_key_of_several
-- A fragment of `append`: a call has the entries of several appends.
(
    select true from unnest(c.keys) as given (key)
    where (
        select true from appends
        where tenant_id = %(tenant_id)s and session_id = c.session_id and request_id = given.key
        limit 1
    )
    limit 1
)

-- name: chain_hashes
-- A fragment of `append`: a call has the entries of several appends.
, array(select l.chain_hash from linked l where l.session_id = c.session_id order by l.place) as chain_hashes

-- name: stubs
-- A fragment of `append`: the stubs and the payloads of the only call.
, stubbed as (
    insert into stubs (tenant_id, session_id, seq, token_count, body, is_stored, file_id,
        thinking_token_count)
    select %(tenant_id)s, c.session_id, c.head_seq + 1 + stub.place, stub.token_count, stub.body,
        stub.file_id <> '', stub.file_id, stub.thinking_token_count
    from call c
    cross join unnest(%(places)s::integer[], %(token_counts)s::integer[], %(stub_bodies)b::bytea[],
        %(file_ids)s::text[], %(thinking_token_counts)s::integer[])
        as stub (place, token_count, body, file_id, thinking_token_count)
    where {is_kept}
    returning seq
), offloaded as (
    insert into payloads (tenant_id, blob_id, session_id, seq, block_index, tool_name, about, mime_type,
        size_bytes, line_count, sha256)
    select %(tenant_id)s, file.blob_id, c.session_id, c.head_seq + 1 + file.place, file.block_index,
        file.tool_name, file.about, file.mime_type, file.size_bytes, file.line_count, file.sha256
    from call c
    cross join jsonb_to_recordset(%(files)s) as file (
        blob_id text, place integer, block_index integer, tool_name text, about text, mime_type text,
        size_bytes bigint, line_count bigint, sha256 text
    )
    where {is_kept}
    returning seq
)

-- name: entry_columns
-- A fragment of `append`: entries that refer to others.
, target_entry_id text, target_place integer

-- name: call_columns
-- A fragment of `append`: entries refer to others.
, target_ids text[], superseded_ids text[], superseded_turn_count bigint

-- name: targets
-- A fragment of `append`: entries refer to others, which are looked up as they were when the
-- statement began. An id is looked up without the session, for which the planner could read the
-- whole transcript. Indexes: entries_id_idx, entries_superseded_idx.
, target as (
    select c.session_id, wanted.entry_id, found.seq, found.kind, (
            select true from entries
            where tenant_id = %(tenant_id)s and session_id = c.session_id and target_seq = found.seq
                and label = 'SUPERSEDED'
            limit 1
        ) is not null as is_superseded
    from held c
    cross join lateral unnest(c.target_ids) as wanted (entry_id)
    cross join lateral (
        select session_id, seq, kind from entries
        where tenant_id = %(tenant_id)s and entry_id = wanted.entry_id
        limit 1
    ) as found
    where found.session_id = c.session_id
)

-- name: targets_exist
-- A fragment of `append`: entries refer to others. It makes no append to a transcript that has
-- grown since the targets were looked up. Only appends of callers have settings, and a guard.
and c.head_seq = (
    select seq from transcripts where tenant_id = %(tenant_id)s and session_id = c.session_id limit 1
) and (
    c.settings_version is null
    or coalesce(cardinality(c.target_ids), 0) = (select count(*) from target where session_id = c.session_id)
)

-- name: fence_columns
-- A fragment of `append`: calls close prompt windows.
, fence_incarnation text, fence_seq bigint, fence_hash text

-- name: is_at_fence
-- A fragment of `append`: calls close prompt windows.
and (
    c.fence_seq is null or (
        c.incarnation = c.fence_incarnation and c.head_seq = c.fence_seq
        and c.head_hash = decode(c.fence_hash, 'hex')
    )
)

-- name: release_column
-- A fragment of `append`: calls end their claims.
, releases boolean

-- name: writer_after
-- A fragment of `append`: calls end their claims.
, case when c.releases then '' else c.writer_run_id end

-- name: retracted
-- A fragment of `append`: calls end their claims, and with them their drafts. Index: draft_pieces
-- primary key.
, retracted as (
    delete from draft_pieces d
    using call c
    join moved m on m.session_id = c.session_id
    where d.tenant_id = %(tenant_id)s and d.session_id = c.session_id and d.epoch <= c.epoch and c.releases
)

-- name: writer_of_head
-- A fragment of `append`: calls end their claims.
case when m.seq is not null and c.releases then '' else c.writer_run_id end

-- name: chain_hash
-- A fragment of `append`: calls have several entries.
chain_hash(l.link) over (partition by l.session_id order by l.place)

-- name: target_seq
-- A fragment of `append`: the seq of the entry that a label marks.
case
    when l.target_place is not null then l.head_seq + 1 + l.target_place
    when l.label is not null then (
        select seq from target where session_id = l.session_id and entry_id = l.target_entry_id
    )
end

-- name: superseded_turn_count
-- A fragment of `append`: the number of messages and notes that were not superseded before.
coalesce(c.superseded_turn_count, 0) + (
    select count(*) from target
    where session_id = c.session_id and entry_id = any(c.superseded_ids) and kind in ('MESSAGE', 'NOTE')
        and not is_superseded
)

-- name: lock_for_append
-- Waits for the transaction that holds the transcript's row, and locks it until commit. Index:
-- transcripts primary key.
select from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
for update;

-- name: read_append_state
-- Reads what decides about an append: the tenant's settings, the head of a readable transcript,
-- what the key was used for, and the first of the targets that does not exist. Takes no lock.
-- Indexes: the primary keys; entries_id_idx.
select coalesce(tn.settings_version, 0) as settings_version, t.incarnation, t.seq, t.chain_hash,
    t.writer_run_id, t.writer_epoch, a.content_hash, a.first_seq, a.last_seq,
    a.writer_run_id as append_run_id, a.writer_epoch as append_epoch, stored.entry_ids,
    stored.chain_hash as last_chain_hash,
    (
        select wanted.entry_id from unnest(%(target_ids)s::text[]) as wanted (entry_id)
        where (
            select session_id from entries
            where tenant_id = %(tenant_id)s and entry_id = wanted.entry_id
            limit 1
        ) is distinct from %(session_id)s
        limit 1
    ) as missing_entry_id
from (values (1)) as one
left join tenants tn on tn.tenant_id = %(tenant_id)s
left join transcripts t on t.tenant_id = %(tenant_id)s and t.session_id = %(session_id)s and t.state = 'LIVE'
    and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
left join appends a on a.tenant_id = %(tenant_id)s and a.session_id = %(session_id)s
    and a.request_id = %(request_id)s
left join lateral (
    select array_agg(page.entry_id) as entry_ids, (array_agg(page.chain_hash))[count(*)] as chain_hash
    from (
        select entry_id, chain_hash from entries
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s
            and seq >= a.first_seq and seq <= a.last_seq
        order by seq
    ) as page
) as stored on true;
