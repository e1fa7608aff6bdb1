-- Has the hook service told of the tenants that mask secrets: before this release it was told of none. Soon, and once more when the workers of the release
-- before, which would take the push and not tell it, have gone. Nothing is to be told where no tenant masks.

set local spawnmesh.tenant = '*';

insert into dispatch (tenant_id, kind, subject_id, due_time)
select t.tenant_id, 'SETTINGS', push.subject_id, now() + push.due_in
from tenants t, (values ('hooks mask', interval '30 seconds'), ('hooks mask, for certain', interval '10 minutes')) as push (subject_id, due_in)
where t.ready and t.settings -> 'transcripts' -> 'mask_secrets' = 'true'::jsonb
on conflict do nothing;
