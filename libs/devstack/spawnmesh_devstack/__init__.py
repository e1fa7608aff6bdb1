"""A whole mesh on one machine: PostgreSQL, S3 and every service as real processes."""
