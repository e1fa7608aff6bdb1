"""The audit log of a service: a chain of events for each tenant, in the tables of `audit.sql`.

`log` keeps events in memory and writes them in batches; `store` has the statements; `chain` hashes
and verifies; `rights` takes the right to change events from the service; `retention` is the command
that removes old ones.
"""
