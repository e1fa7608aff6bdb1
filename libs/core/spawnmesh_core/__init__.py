"""Ids, clock, reasons and typed errors: no I/O, no grpc."""
