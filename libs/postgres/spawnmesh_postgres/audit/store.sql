-- name: lock_chains
-- Locks the ends of these chains, in the order of their tenants, so that one writer at a time adds to
-- a chain. Index: audit_chains_pkey.
select tenant_id, last_sequence, last_hash from audit_chains
where tenant_id = any (%(tenants)s)
order by tenant_id
for update

-- name: add_chains
-- Begins the chains that do not exist, in the order of their tenants. Index: audit_chains_pkey.
insert into audit_chains (tenant_id)
select tenant_id from unnest(%(tenants)s::text[]) as tenant_id order by tenant_id
on conflict (tenant_id) do nothing

-- name: find_stored_events
-- Takes no lock. Returns the events among these that are stored. Index: audit_events_id_idx.
select tenant_id, sequence, event_id, event_time, last_time, call_count, method, caller_kind, subject,
       token_id, resources, code, reason, trace_id, peer, hash
from audit_events where event_id = any (%(ids)s)

-- name: add_events
-- Adds events to locked chains. Index: audit_events_pkey.
insert into audit_events (
    tenant_id, sequence, event_id, event_time, last_time, call_count, method, caller_kind, subject,
    token_id, resources, code, reason, trace_id, peer, hash
)
select e.tenant_id, e.sequence, e.event_id, e.event_time, e.last_time, e.call_count, e.method,
       e.caller_kind, e.subject, e.token_id, e.resources, e.code, e.reason, e.trace_id, e.peer,
       decode(e.hash, 'hex')
from jsonb_to_recordset(%(events)s::jsonb) as e (
    tenant_id text, sequence bigint, event_id text, event_time timestamptz, last_time timestamptz,
    call_count bigint, method text, caller_kind text, subject text, token_id text, resources text[],
    code text, reason text, trace_id text, peer text, hash text
)

-- name: advance_chains
-- Moves the ends of locked chains. Index: audit_chains_pkey.
update audit_chains c set last_sequence = e.last_sequence, last_hash = decode(e.last_hash, 'hex')
from jsonb_to_recordset(%(ends)s::jsonb) as e (tenant_id text, last_sequence bigint, last_hash text)
where c.tenant_id = e.tenant_id

-- name: list_events
-- Takes no lock. A page of events of every tenant by time. Looks at %(scan_limit)s events at most,
-- whatever it finds. The last of these is a row with `is_end`, also if it does not match. They are
-- limited before they are numbered: the planner sorts all rows otherwise. Index:
-- audit_events_time_idx.
select tenant_id, sequence, event_id, event_time, last_time, call_count, method, caller_kind, subject,
       token_id, resources, code, reason, trace_id, peer, hash, is_match, place = %(scan_limit)s as is_end
from (
    select scanned.*,
        (%(method)s = '' or method = %(method)s or split_part(method, '/', 2) = %(method)s)
            and (%(outcome)s = '' or %(outcome)s = case
                when code = 'OK' then 'OK' when code = any (%(denied)s) then 'DENIED' else 'FAILED' end)
            and (%(trace_id)s = '' or trace_id = %(trace_id)s) as is_match
    from (
        select *, row_number() over (order by event_time, tenant_id, sequence) as place
        from (
            select * from audit_events
            where (event_time, tenant_id, sequence) > (%(after_time)s, %(after_tenant)s, %(after_sequence)s)
              and event_time < %(end_time)s
            order by event_time, tenant_id, sequence
            limit %(scan_limit)s
        ) nearest
    ) scanned
) compared
where is_match or place = %(scan_limit)s
order by event_time, tenant_id, sequence
limit %(limit)s

-- name: list_tenant_events
-- As list_events, of one tenant. Events of an earlier tenant of its name do not match unless
-- %(with_hidden)s. Index: audit_events_tenant_idx.
select tenant_id, sequence, event_id, event_time, last_time, call_count, method, caller_kind, subject,
       token_id, resources, code, reason, trace_id, peer, hash, is_match, place = %(scan_limit)s as is_end
from (
    select scanned.*,
        (%(method)s = '' or method = %(method)s or split_part(method, '/', 2) = %(method)s)
            and (%(outcome)s = '' or %(outcome)s = case
                when code = 'OK' then 'OK' when code = any (%(denied)s) then 'DENIED' else 'FAILED' end)
            and (%(trace_id)s = '' or trace_id = %(trace_id)s)
            and (%(with_hidden)s or sequence > (
                select hidden_sequence from audit_chains where tenant_id = %(tenant_id)s limit 1
            )) as is_match
    from (
        select *, row_number() over (order by event_time, sequence) as place
        from (
            select * from audit_events
            where tenant_id = %(tenant_id)s
              and (event_time, sequence) > (%(after_time)s, %(after_sequence)s)
              and event_time < %(end_time)s
            order by event_time, sequence
            limit %(scan_limit)s
        ) nearest
    ) scanned
) compared
where is_match or place = %(scan_limit)s
order by event_time, sequence
limit %(limit)s

-- name: get_chain
-- Takes no lock. Index: audit_chains_pkey.
select tenant_id, last_sequence, last_hash, hidden_sequence, cut_sequence, cut_hash
from audit_chains where tenant_id = %(tenant_id)s

-- name: next_chain
-- Takes no lock. The first chain of a tenant after this one. Index: audit_chains_pkey.
select tenant_id, last_sequence, last_hash, hidden_sequence, cut_sequence, cut_hash
from audit_chains where tenant_id > %(tenant_id)s
order by tenant_id
limit 1

-- name: read_chain
-- Takes no lock. Events of a chain in their order. Index: audit_events_pkey.
select tenant_id, sequence, event_id, event_time, last_time, call_count, method, caller_kind, subject,
       token_id, resources, code, reason, trace_id, peer, hash
from audit_events
where tenant_id = %(tenant_id)s and sequence > %(after)s and sequence <= %(last)s
order by sequence
limit %(limit)s

-- name: hide_events
-- Hides the events of an earlier tenant of this name from its clients. Locks the row. Index:
-- audit_chains_pkey.
update audit_chains set hidden_sequence = last_sequence where tenant_id = %(tenant_id)s
