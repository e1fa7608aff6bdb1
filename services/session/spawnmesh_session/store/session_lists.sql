-- name: list_sessions
-- Takes no lock. Looks at %(scan_limit)s sessions at most, whatever it finds. The last of these is
-- a row with `is_end`, also if it does not match. Ids of sessions sort before 'u' in every
-- collation. A limit is a subquery, so that the planner expects to need a tenth of the rows, and
-- does not read and sort all rows of a tenant that it believes to be small. The source is the
-- condition of an index, and the order is that of the index in one of its directions.
-- session_matches is the filter. Index: sessions_pkey, or that of the ListSource.
select session_id, end_time, is_match, place = %(scan_limit)s as is_end
from (
    select s.session_id, s.end_time, s.place, {matches} as is_match
    from (
        select *, row_number() over (order by {order}) as place
        from (
            select * from sessions
            where tenant_id = %(tenant_id)s and {source}
              and session_id > %(low_id)s and session_id < %(high_id)s
            order by {order}
            limit (select %(scan_limit)s::bigint)
        ) nearest
    ) s
) compared
where is_match or place = %(scan_limit)s
order by {order}
limit %(limit)s

-- name: session_matches
-- A fragment of list_sessions and list_descendants. A null does not filter. Index of the
-- subqueries: runs_newest_idx.
(
    s.delete_time is null and (s.archive_time is null or %(include_archived)s)
    and (%(family_root)s = '' or s.session_id = %(family_root)s or %(family_root)s = any (s.ancestor_ids))
    and (%(states)s::text[] is null or s.state = any (%(states)s::text[]))
    and (%(agent_id)s::text is null or s.agent_id = %(agent_id)s::text)
    and s.agent_id <> all (%(other_agent_ids)s::text[])
    and (%(label)s::text is null or s.label = %(label)s::text)
    and s.label <> all (%(other_labels)s::text[])
    and (%(parent_session_id)s::text is null or s.parent_session_id = %(parent_session_id)s::text)
    and s.parent_session_id <> all (%(other_parent_session_ids)s::text[])
    and s.metadata @> %(metadata)s::jsonb and s.metadata ?& %(metadata_keys)s::text[]
    and not s.metadata @> any (%(other_metadata)s::jsonb[])
    and (%(create_begin)s::timestamptz is null or s.create_time >= %(create_begin)s::timestamptz)
    and (%(create_end)s::timestamptz is null or s.create_time < %(create_end)s::timestamptz)
    and (not %(is_ended)s or s.end_time is not null)
    and (%(end_begin)s::timestamptz is null or s.end_time >= %(end_begin)s::timestamptz)
    and (%(end_end)s::timestamptz is null or s.end_time < %(end_end)s::timestamptz)
    and (%(run_states)s::text[] is null or coalesce((
        select r.state from runs r where r.tenant_id = %(tenant_id)s and r.session_id = s.session_id
        order by r.position desc, r.run_id desc limit 1
    ) = any (%(run_states)s::text[]), false))
    and (not %(compares_failure)s or (
        select (%(failure_reason)s::text is null or reason = %(failure_reason)s::text)
               and reason <> all (%(other_failure_reasons)s::text[])
        from (select coalesce(s.failure ->> 'reason', (
            select r.error_reason from runs r
            where r.tenant_id = %(tenant_id)s and r.session_id = s.session_id
            order by r.position desc, r.run_id desc limit 1
        ), '') as reason) failed
    ))
)

-- name: list_descendants
-- Takes no lock. The session and its descendants, from parent to child: the cost is that of the
-- family. A family of more than %(scan_limit)s gives one row without an id: then list_sessions
-- looks through the tenant's sessions. Index: sessions_pkey, sessions_child_idx; of the fragment
-- session_matches: runs_newest_idx.
with recursive family as (
    select session_id from sessions where tenant_id = %(tenant_id)s and session_id = %(family_root)s
    union all
    select c.session_id
    from family f
    cross join lateral (
        select session_id from sessions
        where tenant_id = %(tenant_id)s and parent_session_id = f.session_id
        order by session_id
    ) c
), members as (
    select session_id from family limit %(scan_limit)s + 1
), page as (
    select s.session_id, s.end_time
    from sessions s
    where s.tenant_id = %(tenant_id)s and s.session_id = any (array(select m.session_id from members m))
      and (select count(*) from members) <= %(scan_limit)s and {source}
      and s.session_id > %(low_id)s and s.session_id < %(high_id)s
      and {matches}
    order by {order}
    limit %(limit)s
)
select session_id, end_time, true as is_match, false as is_end from page
union all
select null, null, false, false where (select count(*) from members) > %(scan_limit)s
order by {order}

-- name: is_in_family
-- Takes no lock. Index: sessions_pkey.
select session_id from sessions
where tenant_id = %(tenant_id)s and session_id = %(parent_session_id)s
  and (session_id = %(family_root)s or %(family_root)s = any (ancestor_ids))

-- name: list_requested
-- Takes no lock. The session that the spawner requested by this id. The spawner is the session
-- whose run spawned; empty for a client. Index: sessions_spawner_request_idx.
select session_id, end_time, true as is_match, false as is_end from sessions
where tenant_id = %(tenant_id)s and request_id = %(request_id)s
  and case when parent_run_id = '' then '' else parent_session_id end = %(spawner)s
  and delete_time is null and (archive_time is null or %(include_archived)s)

-- name: read_sessions
-- Takes no lock. The first of these sessions that fit into %(max_bytes)s, but at least one. Each
-- counts a KiB for what is not measured. Unless %(is_full)s, without the texts of results and the
-- files of receipts, which are not read. Index: sessions_pkey, runs_newest_idx.
with page as (
    select s.*, array_position(%(session_ids)s::text[], s.session_id) as rank,
           case when %(is_full)s then s.receipt
                when s.receipt -> 'files' is not null
                then s.receipt || jsonb_build_object('files', '[]'::jsonb,
                                                     'count', jsonb_array_length(s.receipt -> 'files'))
           end as shown_receipt
    from sessions s
    where s.tenant_id = %(tenant_id)s and s.session_id = any (%(session_ids)s::text[])
      and s.delete_time is null
), measured as (
    select p.*, to_jsonb(r) as latest_run,
           sum(1024 + coalesce(octet_length(r.result_text) + octet_length(r.error_message), 0)
               + coalesce(octet_length(p.shown_receipt::text), 0)
               + octet_length(p.metadata::text)) over (order by p.rank) as bytes
    from page p
    left join lateral (
        select run_id, session_id, state, epoch, first_epoch, attempt_count, draft_entry_id,
               decided_entry_id, decided_text_key,
               case when %(is_full)s then result_text else '' end as result_text, error_reason,
               error_message, usage, revision_count, deadline_time, queue_time, start_time,
               end_time, delay_count, delay_reason, delay_message, not_before_time, capped_revisions,
               finalized_by, superseded_entry_ids, runner_id, interrupt_time, first_queue_time,
               approval_count, approval_id, wait_time, output_begun_count, output_set_count,
               output_file_count, output_total_bytes, budget_session_id, counted_time,
               uncounted_millis, reported_event_count
        from runs where tenant_id = %(tenant_id)s and session_id = p.session_id
        order by position desc, run_id desc limit 1
    ) r on true
)
select * from measured
where bytes <= %(max_bytes)s or rank = (select min(rank) from page)
order by rank
