"""Idempotency keys of a run's writes."""


def answer_request_id(run_id: str, epoch: int, turn: int) -> str:
    """Name the append of a model's answer. A turn repeated after a takeover has another key."""
    return f"answer:{run_id}:{epoch}:{turn}"


def result_request_id(answer_entry_id: str, call_index: int) -> str:
    """Name the append of a tool's result by the call's position: providers reuse tool call ids."""
    return f"result:{answer_entry_id}:{call_index}"


def call_request_id(answer_entry_id: str, call_index: int) -> str:
    """Name the requests of a tool call: a runner that repeats the call uses the same id."""
    return f"call:{answer_entry_id}:{call_index}"
