-- name: begin_finalizing
-- A transaction of its own. Locks the run. Also says whether the tenant masks secrets. See the
-- function for its indexes. Index: tenants_pkey.
select (f.run).*, f.agent_id, f.waiting, f.has_begun, s.masks_secrets
from begin_finalizing(
    set_config('spawnmesh.tenant', %(tenant_id)s, true), %(run_id)s, %(epoch)s, %(entry_id)s
) f
left join lateral (
    select coalesce((settings -> 'transcripts' ->> 'mask_secrets')::boolean, false) as masks_secrets
    from tenants where tenant_id = (f.run).tenant_id offset 0
) s on true;

-- name: decide_run
-- A transaction of its own. Locks the run. See the function for its indexes.
select (d.run).*, d.waiting
from decide_run(
    set_config('spawnmesh.tenant', %(tenant_id)s, true), %(run_id)s, %(epoch)s, %(entry_id)s, %(text_key)s,
    %(capped_revisions)s
) d;

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
                capped_revisions = '[]'
where tenant_id = %(tenant_id)s and run_id = %(run_id)s and epoch = %(epoch)s
  and decided_entry_id = %(entry_id)s and state in ('RUNNING', 'FINALIZING')
