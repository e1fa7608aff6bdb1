"""The migration of a schema distributes it over a Citus cluster, and keeps it distributed."""
