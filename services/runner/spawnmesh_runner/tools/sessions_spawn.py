"""The tool `sessions_spawn`: give a task, and files with it, to a child session."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.content.v1 import thinking_pb2
from spawnmesh.session.v1 import session_pb2, session_service_pb2
from spawnmesh_core.errors import MeshError, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_materialize import open_for_reading

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.clients.threads import finish_in_thread
from spawnmesh_runner.domain.reasons import is_passing, is_undone_by_outage
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.published_files import render_files
from spawnmesh_runner.tools.calling.spawn_budget import SpawnBudget, render_budget
from spawnmesh_runner.tools.calling.spawn_outcome import find_child, may_have_spawned, unknown_spawn_refusal
from spawnmesh_runner.tools.calling.tool import Arguments, CallScope, Result, Tool, shown_path
from spawnmesh_runner.tools.fetch_files import SET_ID_PATTERN

# The limit of one request. The tenant's own limits are usually tighter, and the mesh enforces
# those.
MAX_WORKSPACE_FILE_BYTES = 8 * 1024 * 1024
SPAWN_TIMEOUT_SECONDS = 60.0
# Other calls give up sooner, and the run goes back to the queue. A spawn with files can hardly wait
# there: their content is redacted in the stored call, or is lost with the workspace, and the model
# would have to make the call again.
WITH_FILES_GIVE_UP_AFTER_SECONDS = 120.0

_ENCODINGS = {"utf8": attachment_pb2.ENCODING_UTF8, "base64": attachment_pb2.ENCODING_BASE64}
_THINKING = {
    "": thinking_pb2.THINKING_LEVEL_UNSPECIFIED,
    "off": thinking_pb2.THINKING_LEVEL_OFF,
    "minimal": thinking_pb2.THINKING_LEVEL_MINIMAL,
    "low": thinking_pb2.THINKING_LEVEL_LOW,
    "medium": thinking_pb2.THINKING_LEVEL_MEDIUM,
    "high": thinking_pb2.THINKING_LEVEL_HIGH,
}
_CLEANUPS = {"delete": session_pb2.CLEANUP_DELETE, "keep": session_pb2.CLEANUP_KEEP}
_IS_REDACTED = (
    "a file's content is redacted when its call is stored; hand the file over again,"
    " by path if it is in the workspace, or leave this out"
)


class SpawnAttachment(Arguments):
    name: str = Field(
        default="",
        description="File name for the child; may be left out with `path`. With `set_id`: its name there.",
    )
    content: str = Field(default="", description="The file's content, written in `encoding`.")
    encoding: Literal["utf8", "base64"] = Field(default="utf8", description="How `content` is written.")
    path: str = Field(default="", description="Instead of `content`: a file of this workspace to hand over.")
    set_id: str = Field(
        default="",
        pattern=f"^$|{SET_ID_PATTERN}",
        description=(
            "Instead of `content`: the set that has the file `name`, such as files that a child published."
            " The file need not be in this workspace."
        ),
    )
    new_name: str = Field(default="", description="With `set_id`: another file name for the child.")

    @field_validator("content", mode="before")
    @classmethod
    def _is_there(cls, content: object) -> object:
        if content is None or is_redaction_marker(content):
            raise ValueError(_IS_REDACTED)
        return content

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if [bool(self.path), bool(self.set_id), "content" in self.model_fields_set].count(True) != 1:
            raise ValueError("give one of content, path and set_id")
        if self.set_id and not self.name:
            raise ValueError("give the name that the file has in the set")
        if self.new_name and not self.set_id:
            raise ValueError("new_name goes with set_id; without it, name is the name for the child")
        return self


class SessionsSpawn(Arguments):
    task: str = Field(
        min_length=1, description="What the child is to do. It knows nothing but this and its files."
    )
    label: str = Field(default="", description="A name for people.")
    agent_id: str = Field(default="", description="The agent that does it; left out, the default one.")
    model: str = Field(default="", description="A model to ask first instead of the agent's own.")
    thinking: Literal["", "off", "minimal", "low", "medium", "high"] = Field(
        default="", description="How much the child's models are to think; left out, as its agent says."
    )
    attachments: list[SpawnAttachment] = Field(default=[], description="Files for the child.")
    cleanup: Literal["delete", "keep"] = Field(
        default="delete", description="What becomes of the child's files at its end."
    )
    budget: SpawnBudget | None = Field(
        default=None,
        description="The most that the child and its own children may use. At a limit they wait for more.",
    )

    @field_validator("attachments", mode="before")
    @classmethod
    def _are_there(cls, attachments: object) -> object:
        if attachments is None or (isinstance(attachments, list) and None in attachments):
            raise ValueError(_IS_REDACTED)
        return attachments


async def _execute(scope: CallScope, arguments: SessionsSpawn) -> Result:
    attachments = await finish_in_thread(lambda: _attachments(scope.workspace, arguments.attachments))
    request = session_service_pb2.SpawnSessionRequest(
        request_id=scope.request_id,
        task=arguments.task,
        label=arguments.label,
        agent_id=arguments.agent_id,
        model=arguments.model,
        thinking=_THINKING[arguments.thinking],
        cleanup=_CLEANUPS[arguments.cleanup],
        budget=render_budget(arguments.budget),
        attachments=attachments,
        references=[
            attachment_pb2.ReferencedFile(set_id=one.set_id, name=one.name, new_name=one.new_name)
            for one in arguments.attachments
            if one.set_id
        ],
    )
    peers = scope.peers
    try:
        spawned = await call_with_retry(
            peers.session,
            peers.sessions.SpawnSession,
            request,
            timeout_seconds=SPAWN_TIMEOUT_SECONDS,
            give_up_after_seconds=WITH_FILES_GIVE_UP_AFTER_SECONDS if attachments else None,
        )
    except MeshError as error:
        if not attachments and is_passing(error):
            # The run waits, and the next runner repeats the call with its request_id.
            raise _must_wait(error) from None
        if is_undone_by_outage(error):
            raise ToolRefused(
                error.reason.value,
                "the child was not spawned, because something that it needs is unavailable"
                f" ({error.facts.get('cause', error.reason.value)}); spawn it again later",
            ) from error
        if not may_have_spawned(error):
            if (refused := _refused_attachment(error, arguments.attachments)) is not None:
                raise refused from error
            raise
        child = await find_child(scope)
        if child is None and is_passing(error):
            # The next runner learns for certain: no spawn of this epoch can begin then.
            raise _must_wait(error) from None
        if child is None:
            raise unknown_spawn_refusal(f"the call ended with {error.reason.value}") from error
        return render_spawned(child)
    return render_spawned(spawned.session)


def _must_wait(error: MeshError) -> MeshError:
    """Return an error for which the run waits. After other calls that took too long it goes on."""
    return unavailable("session") if error.reason is Reason.DEADLINE_EXCEEDED else error


def _refused_attachment(error: MeshError, attachments: Sequence[SpawnAttachment]) -> ToolRefused | None:
    """Return the refusal with the attachment that it is about; None if it is about none."""
    sent = [one for one in attachments if not one.set_id] + [one for one in attachments if one.set_id]
    index = error.facts.get("index", "")
    if not index.isdecimal() or int(index) >= len(sent):
        return None
    file = sent[int(index)]
    shown = shown_path(file.path or file.name) + (f" of {file.set_id}" if file.set_id else "")
    return ToolRefused(error.reason.value, f"{shown}: {error.message}")


def render_spawned(session: session_pb2.Session) -> dict[str, object]:
    """Return what the model reads about its child."""
    answer: dict[str, object] = {"session_id": session.session_id, "run_id": session.latest_run.run_id}
    if session.HasField("receipt"):
        receipt = session.receipt
        answer["receipt"] = {
            "count": receipt.count,
            "total_bytes": receipt.total_bytes,
            "rel_dir": receipt.rel_dir,
            "files": render_files(receipt.files),
        }
    return answer


def is_redaction_marker(content: object) -> bool:
    """Return True for the marker that replaces a file's content in a stored call."""
    return isinstance(content, dict) and "$redacted" in content


def _attachments(
    workspace: Path, attachments: Sequence[SpawnAttachment]
) -> list[attachment_pb2.InlineAttachment]:
    """Return the files as the mesh accepts them, without those of sets.

    Raises ToolRefused over MAX_WORKSPACE_FILE_BYTES in all, and MaterializeError.
    """
    left_bytes = MAX_WORKSPACE_FILE_BYTES
    inline = []
    for attachment in attachments:
        if attachment.set_id:
            continue
        if not attachment.path:
            encoding = _ENCODINGS[attachment.encoding]
            inline.append(
                attachment_pb2.InlineAttachment(
                    name=attachment.name, content=attachment.content, encoding=encoding
                )
            )
            continue
        with open_for_reading(workspace, attachment.path) as file:
            data = file.read(left_bytes + 1)
        left_bytes -= len(data)
        if left_bytes < 0:
            raise ToolRefused(
                "TOO_LARGE", f"at most {MAX_WORKSPACE_FILE_BYTES} bytes of workspace files fit one spawn"
            )
        name = attachment.name or attachment.path.rpartition("/")[2]
        inline.append(attachment_pb2.InlineAttachment(name=name, data=data))
    return inline


SESSIONS_SPAWN = Tool(
    name="sessions_spawn",
    description=(
        "Gives a task to a child agent that works on it by itself, with the attached files in its own"
        " workspace. Answers at once with the child's session; the child's result reaches you as a message"
        " when it is done."
    ),
    arguments=SessionsSpawn,
    execute=_execute,
    idempotent=True,
)
