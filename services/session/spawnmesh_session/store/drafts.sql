-- name: begin_finalizing
-- RUNNING -> FINALIZING with this draft, which may begin again, with its session's agent. Returns
-- no row, and does nothing, unless the run is held at the epoch, no other draft is decided, no
-- decided draft is superseded, the run is not interrupted and no message waits. A draft that was
-- sent back may begin again: its repeat gets the stored answer of the plugins, and decide_run
-- refuses it. Locks the run. A message that arrives at the same time is seen by decide_run. Index:
-- runs_pkey, inbox_messages_unread_idx, sessions_pkey.
update runs r set state = 'FINALIZING', draft_entry_id = %(entry_id)s
where r.tenant_id = %(tenant_id)s and r.run_id = %(run_id)s and r.epoch = %(epoch)s
  and (r.state = 'RUNNING' or r.state = 'FINALIZING' and r.decided_entry_id = '')
  and r.decided_entry_id in ('', %(entry_id)s) and r.decided_entry_id <> all (r.superseded_entry_ids)
  and r.interrupt_time is null
  and (select true from inbox_messages
       where tenant_id = %(tenant_id)s and session_id = r.session_id and acknowledge_time is null
         and position >= 0
       limit 1) is null
returning r.*,
    (select agent_id from sessions where tenant_id = %(tenant_id)s and session_id = r.session_id) as agent_id

-- name: get_finalizing
-- Takes no lock. The run with the facts that begin_finalizing depends on. Index: runs_pkey,
-- inbox_messages_unread_idx, sessions_pkey.
select r.*,
    (select agent_id from sessions where tenant_id = %(tenant_id)s and session_id = r.session_id) as agent_id,
    (select count(*) from inbox_messages
     where tenant_id = %(tenant_id)s and session_id = r.session_id and acknowledge_time is null
       and position >= 0) as unread
from runs r
where r.tenant_id = %(tenant_id)s and r.run_id = %(run_id)s

-- name: supersede_decided
-- The decided draft of a RUNNING run is superseded from then on. Locks the run. Changes nothing if
-- the run is not held at the epoch, or if another draft is decided. Index: runs_pkey.
update runs set superseded_entry_ids = superseded_entry_ids || decided_entry_id
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s and state = 'RUNNING'
  and decided_entry_id = %(entry_id)s and decided_entry_id <> all (superseded_entry_ids)

-- name: decide_run
-- Decides that the draft, with this text, is the answer: from then on no message is put before it,
-- and %(capped_revisions)s and %(finalized_by)s are kept with it. Returns no row, and does nothing,
-- unless the run is held at the epoch, no draft is decided, the draft is not superseded, the run is
-- not interrupted and no message waits. The transaction has locked the run before, so this
-- statement sees every message whose sender was told that this run will read it. Index: runs_pkey,
-- inbox_messages_unread_idx.
update runs r set state = 'FINALIZING', draft_entry_id = %(entry_id)s, decided_entry_id = %(entry_id)s,
                  decided_text_key = %(text_key)s, capped_revisions = %(capped_revisions)s,
                  finalized_by = %(finalized_by)s
where r.tenant_id = %(tenant_id)s and r.run_id = %(run_id)s and r.epoch = %(epoch)s
  and (r.state = 'RUNNING' or r.state = 'FINALIZING' and r.decided_entry_id = '')
  and %(entry_id)s <> all (r.superseded_entry_ids) and r.interrupt_time is null
  and (select true from inbox_messages
       where tenant_id = %(tenant_id)s and session_id = r.session_id and acknowledge_time is null
         and position >= 0
       limit 1) is null
returning r.*

-- name: resume_run
-- Makes a RUNNING or FINALIZING run RUNNING and adds the superseded draft, if any. Changes nothing
-- if the run is not held at the epoch, or if its draft was decided. Locks the run. Index:
-- runs_pkey.
update runs set
    state = 'RUNNING', draft_entry_id = '', revision_count = greatest(revision_count, %(revision_count)s),
    superseded_entry_ids = case when %(superseded_entry_id)s::text = any (superseded_entry_ids || ''::text)
                                then superseded_entry_ids
                                else superseded_entry_ids || %(superseded_entry_id)s::text end
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s
  and (state = 'RUNNING' or state = 'FINALIZING' and decided_entry_id = '')

-- name: withdraw_decision
-- Locks the run. Index: runs_pkey.
update runs set state = 'RUNNING', draft_entry_id = '', decided_entry_id = '', decided_text_key = '',
                capped_revisions = '[]', finalized_by = '{}'
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s
  and decided_entry_id = %(entry_id)s and state in ('RUNNING', 'FINALIZING')
