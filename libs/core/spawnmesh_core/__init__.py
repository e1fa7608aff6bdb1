"""Ids, clock, reasons and typed errors. The package does no I/O and does not import grpc."""
