"""The job for a small model: one session, one file, one fact.

SmolLM2 is too small to plan with tools. The scripted `opener` reads the file for it and then is
over its limit, so the router calls SmolLM2, which answers from the file's bytes in its prompt.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.transcript.v1.entry_pb2 import Entry

from spawnmesh_devstack.demo_document import Check, Document
from spawnmesh_devstack.demo_files import WORDS
from spawnmesh_devstack.demo_job import Job
from spawnmesh_devstack.models import SCRIPTED_OPENER, Choice

_FILE = "note.txt"
_TIMEOUT_SECONDS = 300.0


def make_note(directory: Path, seed: int) -> str:
    """Write a file with a password in it, and return the password."""
    password = "-".join(Random(seed).sample(WORDS, 2))  # noqa: S311 - it protects nothing
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _FILE).write_text(f"The password is {password}.\n")
    return password


def small_job(directory: Path, choice: Choice) -> Job:
    """Return the job: one reader with one file."""
    reader = AgentProfile(
        agent_id="reader",
        system_prompt="You answer questions about a file in one short sentence.",
        models=[SCRIPTED_OPENER, choice.name],
        tools=["list_files", "read_file"],
    )
    return Job([reader], "What is the password in the file?", [directory / _FILE], _TIMEOUT_SECONDS)


def small_checks(report: Document, entries: Sequence[Entry], password: str, choice: Choice) -> list[Check]:
    """Check that the model received the file's bytes and answered. Whether it understood them is
    reported only.
    """
    read = [entry.body.message for entry in entries if entry.body.message.tool_name == "read_file"]
    answered = [one for one in report["attempts"] if one["model"] == choice.name and not one["reason"]]
    tried = [one for one in report["attempts"] if one["reason"]]
    return [
        Check(
            "the file's bytes are in what the model was sent",
            any(password in str(message) for message in read),
        ),
        Check("the scripted model gave way and the real one answered", bool(tried) and bool(answered)),
        Check("the run succeeded", report["sessions"][0]["run_state"] == "SUCCEEDED"),
        Check(f"the answer names the password {password}", password in report["answer"], required=False),
    ]
