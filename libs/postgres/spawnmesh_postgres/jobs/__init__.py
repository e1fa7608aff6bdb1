"""Durable background jobs: enqueued by the transaction that makes them due, run at least once.

A service has the table of `jobs.sql` in its schema. `store` enqueues, claims and ends jobs;
`worker` runs them.
"""
