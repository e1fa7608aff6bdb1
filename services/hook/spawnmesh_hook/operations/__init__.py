"""Steps that several RPCs and the outbox relay share."""
