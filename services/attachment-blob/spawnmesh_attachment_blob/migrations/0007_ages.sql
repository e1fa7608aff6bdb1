-- What has an age at which it goes, found without reading the rows that stay.

-- Sets that were handed over and that nobody attached. Those that keep payloads stay STAGED for good, and have ids of another kind.
create index sets_staged_idx on sets (tenant_id, set_id) where state = 'STAGED' and starts_with(set_id, 'att_');

-- What released sets leave, by its age.
create index sets_released_idx on sets (tenant_id, state_time, set_id) where state = 'RELEASED';
