-- name: insert_approval
-- The transaction has locked the session and the run, and has read the time before. Index:
-- approvals_pkey.
insert into approvals (tenant_id, approval_id, session_id, run_id, agent_id, ancestor_ids, tool_name,
                       arguments_json, parameters_json, question, choices, reason, on_expiry, create_time,
                       expire_time)
values (%(tenant_id)s, %(approval_id)s, %(session_id)s, %(run_id)s, %(agent_id)s, %(ancestor_ids)s,
        %(tool_name)s, %(arguments_json)s, %(parameters_json)s, %(question)s, %(choices)s, %(reason)s,
        %(on_expiry)s, %(create_time)s, %(expire_time)s)
returning *

-- name: get_approval
-- Takes no lock. Index: approvals_pkey.
select * from approvals where tenant_id = %(tenant_id)s and approval_id = %(approval_id)s

-- name: lock_approval
-- Locks the approval; the transaction has locked its session and its run before. Index:
-- approvals_pkey.
select * from approvals where tenant_id = %(tenant_id)s and approval_id = %(approval_id)s for update

-- name: decide_approval
-- Locks the approval. Returns no row if it is not pending. Index: approvals_pkey.
update approvals set state = %(state)s, decide_time = %(now)s, decided_by = %(decided_by)s,
                     edited_arguments_json = %(edited_arguments_json)s, text = %(text)s
where tenant_id = %(tenant_id)s and approval_id = %(approval_id)s and state = 'PENDING'
returning *

-- name: escalate_approval
-- Locks the approval. It waits until another time, once, if that is its policy
-- (`domain.approvals.is_to_escalate`); otherwise returns no row. The transaction has read the time
-- before. Index: approvals_pkey.
update approvals set escalate_time = %(now)s, expire_time = %(expire_time)s
where tenant_id = %(tenant_id)s and approval_id = %(approval_id)s and state = 'PENDING'
  and on_expiry = 'ESCALATE' and escalate_time is null
returning *

-- name: begin_call
-- Locks the approval. A runner takes over that the call was approved, once. Index: approvals_pkey.
update approvals set begin_epoch = %(epoch)s, begin_time = %(now)s
where tenant_id = %(tenant_id)s and approval_id = %(approval_id)s and begin_epoch = 0
returning *

-- name: list_approvals
-- Takes no lock. Looks at %(scan_limit)s approvals at most, whatever it finds, in the order of the
-- ids. The last of these is a row with `is_end`, also if it does not match. The source is the
-- condition of an index. An empty text does not filter. A limit is a subquery, so that the planner
-- expects to need a tenth of the rows. Index: approvals_pending_idx or approvals_pkey.
select *, place = %(scan_limit)s as is_end,
       sum(512 + octet_length(arguments_json) + octet_length(parameters_json) + octet_length(question)
           + octet_length(choices::text) + octet_length(reason) + octet_length(edited_arguments_json)
           + octet_length(text)) filter (where is_match) over (order by place) as bytes
from (
    select a.*,
           (%(state)s = '' or a.state = %(state)s)
           and (%(session_id)s = '' or a.session_id = %(session_id)s or %(session_id)s = any (a.ancestor_ids))
           and (%(agent_id)s = '' or a.agent_id = %(agent_id)s)
           and (%(tool_name)s = '' or a.tool_name = %(tool_name)s) as is_match
    from (
        select *, row_number() over (order by approval_id) as place
        from (
            select * from approvals
            where tenant_id = %(tenant_id)s and {source} and approval_id > %(after_id)s
            order by approval_id
            limit (select %(scan_limit)s::bigint)
        ) next
    ) a
) compared
where is_match or place = %(scan_limit)s
order by approval_id
limit %(limit)s

-- name: delete_approvals
-- Locks the rows. Index: approvals_session_idx, approvals_pkey.
delete from approvals
where tenant_id = %(tenant_id)s and approval_id = any (array(
    select a.approval_id from unnest(%(session_ids)s::text[]) asked (session_id)
    cross join lateral (
        select approval_id from approvals
        where tenant_id = %(tenant_id)s and session_id = asked.session_id
        order by approval_id
    ) a))
