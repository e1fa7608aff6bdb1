-- name: write_draft
-- Follows `join_writers`. Adds pieces to the draft of a claim if the claim is current, the tenant
-- does not mask secrets, after_seq is at or shortly before the head, the claim has appended no
-- answer behind it, no newer draft of it has begun, and the pieces follow the newest one and are
-- not too many. The first piece of a draft deletes the pieces of earlier ones. Returns the head,
-- and the draft after that; no row if there is no transcript that can be written. Shares the lock
-- of the transcript's row until commit, so that no claim ends and no deletion begins meanwhile.
-- Indexes: primary keys.
with head as materialized (
    select incarnation, seq, chain_hash, writer_run_id, writer_epoch
    from transcripts
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and state = 'LIVE'
        and not exists (select true from purged_tenants where tenant_id = %(tenant_id)s)
    for share
), draft as materialized (
    select h.*, case when n.number = %(number)s then n.end_offset else 0 end as old_offset,
        case when n.number = %(number)s then n.place else 0 end as old_place,
        h.writer_run_id = %(run_id)s and h.writer_epoch = %(epoch)s
            and coalesce(n.number, 0) <= %(number)s
            and %(after_seq)s between h.seq - %(max_entries)s and h.seq
            and not exists (select true from tenants where tenant_id = %(tenant_id)s and mask_secrets)
            and not exists (
                select true from entries
                where tenant_id = %(tenant_id)s and session_id = %(session_id)s and seq > %(after_seq)s
                    and role = 'ASSISTANT' and writer_epoch = %(epoch)s
            ) as is_open
    from head h
    left join (
        select number, place, end_offset
        from draft_pieces
        where tenant_id = %(tenant_id)s and session_id = %(session_id)s and epoch = %(epoch)s
        order by number desc, begin_offset desc
        limit 1
    ) as n on true
), added as (
    insert into draft_pieces (
        tenant_id, session_id, epoch, number, place, begin_offset, end_offset, run_id, after_seq, model,
        kind, tool_call_id, tool_name, begins_call, text
    )
    select %(tenant_id)s, %(session_id)s, %(epoch)s, %(number)s, d.old_place + p.place,
        p.begin_offset, p.end_offset, %(run_id)s, %(after_seq)s, %(model)s,
        p.kind, p.tool_call_id, p.tool_name, p.begins_call, p.text
    from draft d
    cross join unnest(
        %(begins)s::bigint[], %(ends)s::bigint[], %(kinds)s::text[], %(call_ids)s::text[],
        %(names)s::text[], %(begin_calls)s::boolean[], %(texts)s::bytea[]
    ) with ordinality as p (
        begin_offset, end_offset, kind, tool_call_id, tool_name, begins_call, text, place
    )
    where d.is_open and d.old_offset = %(offset)s and d.old_place + %(count)s <= %(max_pieces)s
        and %(end_offset)s <= %(max_bytes)s
    on conflict do nothing
    returning end_offset
), replaced as (
    delete from draft_pieces
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s
        and (epoch < %(epoch)s or (epoch = %(epoch)s and number < %(number)s))
        and exists (select from added) and %(offset)s = 0
)
select incarnation, seq, chain_hash, writer_run_id, writer_epoch,
    is_open and old_place + %(count)s <= %(max_pieces)s as is_open,
    coalesce((select max(end_offset) from added), old_offset) as end_offset
from draft;

-- name: read_draft
-- Returns the draft of a claim, if it is valid, and its pieces from an offset on, in order: all of
-- them if the draft is another one than the given. A draft without such pieces has one row, without
-- a piece. Takes no lock. Indexes: primary keys.
with newest as materialized (
    select number, run_id, model, after_seq
    from draft_pieces
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and epoch = %(writer_epoch)s
    order by number desc, begin_offset desc
    limit 1
), valid as materialized (
    select n.number, n.model,
        case when %(epoch)s = %(writer_epoch)s and n.number = %(number)s then %(offset)s else 0 end as offset
    from newest n
    where n.run_id = %(writer_run_id)s
        and not exists (select true from tenants where tenant_id = %(tenant_id)s and mask_secrets)
        and not exists (
            select true from entries
            where tenant_id = %(tenant_id)s and session_id = %(session_id)s
                -- A join would not look for the seq in the index, and read all entries.
                and seq > (select after_seq from newest)
                and role = 'ASSISTANT' and writer_epoch = %(writer_epoch)s
        )
)
select v.number, v.model, p.begin_offset, p.kind, p.tool_call_id, p.tool_name, p.begins_call, p.text
from valid v
left join lateral (
    select begin_offset, kind, tool_call_id, tool_name, begins_call, text
    from draft_pieces
    where tenant_id = %(tenant_id)s and session_id = %(session_id)s and epoch = %(writer_epoch)s
        and number = v.number and begin_offset >= v.offset
    order by begin_offset
) as p on true;
