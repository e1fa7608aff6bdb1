"""The state of a job queue."""

from procrastinate import App
from procrastinate.exceptions import ConnectorException


async def job_queue_answers(jobs: App) -> bool:
    """Return whether a statement of the queue is executed."""
    try:
        return await jobs.check_connection_async()
    except ConnectorException:
        return False
