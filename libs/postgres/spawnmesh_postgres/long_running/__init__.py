"""Long work of clients: operations that survive restarts, and are followed and cancelled.

A service has the table of `operations.sql` in its schema, beside the one of jobs: a job executes
each operation. `operation_types` reads from the contract which RPCs start one; `store` reads and
writes the rows; `runner` does the steps in a worker; `servicer` serves OperationService.
"""
