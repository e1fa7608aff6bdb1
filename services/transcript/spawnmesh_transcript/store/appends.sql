-- `append` writes all entries of some calls. The fragments behind it are put in where it names
-- them, if an append needs them: PostgreSQL prepares each lookup of a plan in every run, also one
-- that no entry needs. An append of one entry that refers to no other, as nearly all are, needs
-- none.

-- name: append
-- Appends the entries of each call behind the head of its transcript, all or none; at most one call
-- for each transcript. It may run as a transaction of its own.
--
-- Returns the head of each call that was made. A call without a row left nothing behind: another
-- transaction holds the transcript's row, or the key was used, or a precondition does not hold. The
-- preconditions of a call, where it has them: its claim is current; the tenant's settings are those
-- under which its entries were prepared, and it is not being purged; all of its target_ids exist.
--
-- Each step takes the rows of the one before: the transcript's row as it is once it is locked,
-- which may be newer than the snapshot; the key, if it is new; the entries; the head. The head
-- moves by an insert that conflicts, which updates the newest version of the locked row and finds
-- it by the primary key. Lookups of one row are limited to it, so that they are not joined.
--
-- Locks the rows of transcripts until commit: with `skip_locked`, those that no other transaction
-- holds, and never waits.
-- Indexes: the primary keys; those of `find_target` for entries with a target.
with call as materialized (
    select c.*, t.seq as head_seq, t.chain_hash as head_hash,
        t.newest_entry_id, t.writer_run_id, t.writer_epoch, clock_timestamp() as moment
    from (
        select {scope}, %(calls)s::jsonb as calls
    ) as given
    cross join lateral jsonb_to_recordset(given.calls) as c (
        session_id text, settings_version bigint, run_id text, epoch bigint, service text, client text,
        {key_columns}, entries jsonb, entry_count integer, token_count bigint, byte_count bigint,
        turn_count bigint{call_columns}
    )
    cross join lateral (
        select seq, chain_hash, newest_entry_id, writer_run_id, writer_epoch
        from transcripts
        where tenant_id = %(tenant_id)s and session_id = c.session_id and state = {state}
            and (c.run_id is null or (writer_run_id = c.run_id and writer_epoch = c.epoch))
        limit 1
        for update {skip_locked}
    ) as t
    where (c.settings_version is null or coalesce((
            select settings_version = c.settings_version and not is_purging
            from tenants
            where tenant_id = %(tenant_id)s
        ), c.settings_version = 0))
        and {keys_are_new} and {targets_exist}
), kept as (
    insert into appends (
        tenant_id, session_id, idempotency_key, content_hash, first_seq, last_seq, writer_run_id,
        writer_epoch
    )
    select %(tenant_id)s, c.session_id, {keys}
    returning session_id
), linked as materialized (
    select l.*, {chain_hash} as chain_hash
    from (
        select p.*, case p.place when 0 then p.head_hash else '' end || convert_to(concat_ws(
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
                is_synthetic boolean, label text, target_entry_id text, target_place integer,
                first_byte integer, body_size integer
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
    select %(tenant_id)s, l.session_id, l.seq, l.entry_id, l.parent_id, l.kind, coalesce(l.role, ''),
        l.token_count, coalesce(l.calls, '{}'), coalesce(l.answers, ''), coalesce(l.is_synthetic, false),
        coalesce(l.label, ''), {target_seq}, coalesce(l.run_id, ''), coalesce(l.epoch, 0), l.service,
        l.client, l.moment, l.chain_hash, l.body, l.token_vocabulary
    from linked l
){stubs}, moved as (
    insert into transcripts as t (
        tenant_id, session_id, incarnation, forked_from_session_id, seq, chain_hash, newest_entry_id,
        token_count, logical_bytes, turn_count, superseded_turn_count
    )
    select %(tenant_id)s, c.session_id, '', '', l.seq, l.chain_hash, l.entry_id, c.token_count, c.byte_count,
        c.turn_count, {superseded_turn_count}
    from call c
    join linked l on l.session_id = c.session_id and l.place = c.entry_count - 1
    on conflict (tenant_id, session_id) do update set
        seq = excluded.seq, chain_hash = excluded.chain_hash, newest_entry_id = excluded.newest_entry_id,
        token_count = t.token_count + excluded.token_count,
        logical_bytes = t.logical_bytes + excluded.logical_bytes,
        turn_count = t.turn_count + excluded.turn_count,
        superseded_turn_count = t.superseded_turn_count + excluded.superseded_turn_count
    returning t.session_id, t.incarnation, t.seq, t.chain_hash, t.writer_run_id, t.writer_epoch
)
select m.*{chain_hashes} from moved m;

-- name: key_columns
-- A fragment of `append`: each call is one append.
idempotency_key text, content_hash text

-- name: keys
-- A fragment of `append`: each call is one append.
c.idempotency_key, decode(c.content_hash, 'hex'), c.head_seq + 1, c.head_seq + c.entry_count,
    c.writer_run_id, c.writer_epoch
from call c
where c.idempotency_key is not null
on conflict do nothing

-- name: is_kept
-- A fragment of `append`: each call is one append.
c.idempotency_key is null or c.session_id in (select session_id from kept)

-- name: key_columns_of_several
-- A fragment of `append`: a call has the entries of several appends.
idempotency_keys text[], content_hashes text[], first_places integer[], last_places integer[]

-- name: keys_of_several
-- A fragment of `append`: a call has the entries of several appends. The statement fails if one of
-- the keys was used by a transaction that it does not see.
k.idempotency_key, decode(k.content_hash, 'hex'), c.head_seq + 1 + k.first_place,
    c.head_seq + 1 + k.last_place, c.writer_run_id, c.writer_epoch
from call c
cross join lateral unnest(c.idempotency_keys, c.content_hashes, c.first_places, c.last_places)
    as k (idempotency_key, content_hash, first_place, last_place)

-- name: keys_are_new
-- A fragment of `append`: a call has the entries of several appends.
not exists (
    select from unnest(c.idempotency_keys) as used_key
    where (
        select true from appends
        where tenant_id = %(tenant_id)s and session_id = c.session_id and idempotency_key = used_key
        limit 1
    )
)

-- name: chain_hashes
-- A fragment of `append`: a call has the entries of several appends.
, array(select l.chain_hash from linked l where l.session_id = m.session_id order by l.place) as chain_hashes

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
)

-- name: call_columns
-- A fragment of `append`: entries refer to others.
, target_ids text[], superseded_ids text[], superseded_turn_count bigint

-- name: targets_exist
-- A fragment of `append`: entries refer to others, which are looked up as they were when the
-- statement began. It makes no append to a transcript that has grown since.
t.seq = (
    select seq from transcripts where tenant_id = %(tenant_id)s and session_id = c.session_id limit 1
) and (c.target_ids is null or not exists (
    select from unnest(c.target_ids) as target_id
    where not exists (select from find_target(%(tenant_id)s, c.session_id, target_id))
))

-- name: chain_hash
-- A fragment of `append`: calls have several entries.
chain_hash(l.link) over (partition by l.session_id order by l.place)

-- name: target_seq
-- A fragment of `append`: the seq of the entry that a label marks.
case
    when l.target_place is not null then l.head_seq + 1 + l.target_place
    when l.label is not null then (
        select seq from find_target(%(tenant_id)s, l.session_id, l.target_entry_id)
    )
end

-- name: superseded_turn_count
-- A fragment of `append`: the number of messages and notes that were not superseded before.
case when c.superseded_ids is null then 0 else (
    select count(*)
    from unnest(c.superseded_ids) as target_id
    cross join lateral find_target(%(tenant_id)s, c.session_id, target_id) as target
    where target.kind in ('MESSAGE', 'NOTE') and not target.is_superseded
) end + coalesce(c.superseded_turn_count, 0)

-- name: lock_for_append
-- Waits for the transaction that holds the transcript's row, and locks it until commit. Index:
-- transcripts primary key.
select from transcripts
where tenant_id = %(tenant_id)s and session_id = %(session_id)s
for update;

-- name: read_append_state
-- Runs as a transaction of its own. Reads what decides about an append: the tenant's settings, the
-- head of a readable transcript, what the key was used for, and the first of the targets that does
-- not exist. Takes no lock. Every lookup depends on the row that sets the scope. Indexes: the
-- primary keys; those of `find_target`.
select coalesce(tn.settings_version, 0) as settings_version, t.incarnation, t.seq, t.chain_hash,
    t.writer_run_id, t.writer_epoch, a.content_hash, a.first_seq, a.last_seq,
    a.writer_run_id as append_run_id, a.writer_epoch as append_epoch, stored.entry_ids,
    stored.chain_hash as last_chain_hash,
    (
        select target_id from unnest(%(target_ids)s::text[]) as target_id
        where not exists (select from find_target(%(tenant_id)s, %(session_id)s, target_id))
        limit 1
    ) as missing_entry_id
from (select set_config('spawnmesh.tenant', %(tenant_id)s, true) as tenant_id) as scope
left join lateral (
    select settings_version, is_purging from tenants
    where tenant_id = %(tenant_id)s and tenant_id = scope.tenant_id
    limit 1
) as tn on true
left join lateral (
    select * from transcripts
    where tenant_id = %(tenant_id)s and tenant_id = scope.tenant_id and session_id = %(session_id)s
        and state = 'LIVE' and tn.is_purging is not true
    limit 1
) as t on true
left join lateral (
    select * from appends
    where tenant_id = %(tenant_id)s and tenant_id = scope.tenant_id and session_id = %(session_id)s
        and idempotency_key = %(idempotency_key)s
    limit 1
) as a on true
left join lateral (
    select array_agg(page.entry_id) as entry_ids, (array_agg(page.chain_hash))[count(*)] as chain_hash
    from (
        select entry_id, chain_hash from entries
        where tenant_id = %(tenant_id)s and tenant_id = a.tenant_id and session_id = %(session_id)s
            and seq between a.first_seq and a.last_seq
        order by seq
        limit a.last_seq - a.first_seq + 1
    ) as page
) as stored on true;
