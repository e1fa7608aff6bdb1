"""The tool `publish_files`: keep files of the workspace for the parent and for people."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO

from pydantic import Field
from spawnmesh.attachment_blob.v1.attachment_pb2 import InlineAttachment
from spawnmesh.session.v1 import output_pb2
from spawnmesh_client.attachments import Attachment, mime_type_of
from spawnmesh_client.spawn_attachments import INLINE_FILE_BYTES
from spawnmesh_core.errors import MeshError, refused_with, unavailable
from spawnmesh_core.reasons import Reason
from spawnmesh_materialize import MaterializeError, MaterializeReason, open_for_reading

from spawnmesh_runner.clients.file_upload import upload
from spawnmesh_runner.clients.peers import Peers
from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.clients.threads import finish_in_thread
from spawnmesh_runner.domain.reasons import RUN_LOST, may_succeed_later
from spawnmesh_runner.domain.tools import ToolRefused
from spawnmesh_runner.tools.calling.published_files import find_published, render_files
from spawnmesh_runner.tools.calling.tool import (
    Arguments,
    CallScope,
    Result,
    Tool,
    refused_path,
    shown_path,
)

# The large files of a call are uploaded before the limits of the tenant are checked.
MAX_PATHS = 200
# One request holds so many. Files beyond them are uploaded before it.
MAX_INLINE_BYTES = 8 * 1024 * 1024
PUBLISH_TIMEOUT_SECONDS = 60.0
# Other calls give up sooner, and the run goes back to the queue. A publication cannot wait there:
# its files would be lost with the workspace.
GIVE_UP_AFTER_SECONDS = 120.0

OTHER_FILES_NOTE = (
    "These are the files as this call published them first, before your runner was replaced. They are not"
    " what the workspace has now: publish that again if it is needed."
)

_HIDDEN_FACTS = ("file", "index", "first_index", "trace_id", "upload_id")


class FileToPublish(Arguments):
    path: str = Field(min_length=1, description="File, relative to the workspace.")
    name: str = Field(default="", description="Its name in the set; left out, the last part of the path.")

    @property
    def set_name(self) -> str:
        return self.name or self.path.rpartition("/")[2]


class PublishFiles(Arguments):
    paths: list[str | FileToPublish] = Field(
        min_length=1,
        max_length=MAX_PATHS,
        description=(
            f"Files, relative to the workspace, at most {MAX_PATHS}. Each is published under the last part of"
            " its path, or, given as an object with `path` and `name`, under that name."
        ),
    )

    @property
    def files(self) -> list[FileToPublish]:
        return [FileToPublish(path=one) if isinstance(one, str) else one for one in self.paths]


async def _execute(scope: CallScope, arguments: PublishFiles) -> Result:
    if scope.was_begun and (published := await _find_earlier(scope)) is not None:
        return _render(published)
    try:
        request, files = await _prepare(scope, arguments.files)
    except MeshError as error:
        if refused_with(error, *RUN_LOST):
            raise
        raise _refusal(error) from error
    try:
        with _naming(files):
            return _render(await _publish(scope.peers, request))
    except MeshError as error:
        if refused_with(error, *RUN_LOST):
            raise
        if error.reason is not Reason.REQUEST_ID_REUSED and not may_succeed_later(error):
            raise _refusal(error) from error
        return await _outcome_of_failed(scope, error)


async def _find_earlier(scope: CallScope) -> output_pb2.OutputSet | None:
    """Return what the call has published on an earlier runner; None if it has published nothing.

    During an outage it raises an error with which the run waits. This runner has not written into
    the workspace yet, so nothing is lost by that.
    """
    try:
        return await find_published(scope)
    except MeshError as error:
        if refused_with(error, *RUN_LOST):
            raise
        if may_succeed_later(error):
            raise unavailable("session") from error
        raise _unknown(f"the session service refused to say ({error.reason.value})") from error


async def _outcome_of_failed(scope: CallScope, error: MeshError) -> Result:
    """Return what was published although the call failed.

    Other files than now may be published: an earlier runner sent those, and was lost before their
    set was found.
    """
    is_other = error.reason is Reason.REQUEST_ID_REUSED
    try:
        published = await find_published(scope)
    except MeshError as lookup_error:
        if refused_with(lookup_error, *RUN_LOST):
            raise
        raise _unknown(f"the session service did not say ({lookup_error.reason.value})") from error
    if published is not None:
        return _render(published, note=OTHER_FILES_NOTE) if is_other else _render(published)
    if is_other:
        raise _unknown("an earlier runner began the call with other files") from error
    raise _refusal(error) from error


async def _prepare(
    scope: CallScope, files: Sequence[FileToPublish]
) -> tuple[output_pb2.PublishFilesRequest, list[FileToPublish]]:
    """Return the request, and the files in its order: small ones are inside, and the others are
    uploaded before it.

    Raises ToolRefused, TurnInterrupted for an interrupt during an upload, and MeshError, also for
    an outage that lasts GIVE_UP_AFTER_SECONDS. A MeshError about one file has its path as the fact
    `file`.
    """
    inline, small, large = await finish_in_thread(lambda: _read_small(scope, files))
    request = output_pb2.PublishFilesRequest(epoch=scope.epoch, request_id=scope.request_id, files=inline)
    for file in large:
        with await finish_in_thread(partial(_open, scope, file)) as source, _naming([file]):
            uploading = upload(
                scope.peers, file.set_name, source, give_up_after_seconds=GIVE_UP_AFTER_SECONDS
            )
            request.uploads.append(await scope.cut_turn(uploading))
    return request, [*small, *large]


async def _publish(peers: Peers, request: output_pb2.PublishFilesRequest) -> output_pb2.OutputSet:
    """Raises MeshError, also for an outage that lasts GIVE_UP_AFTER_SECONDS."""
    published = await call_with_retry(
        peers.session,
        peers.runs.PublishFiles,
        request,
        timeout_seconds=PUBLISH_TIMEOUT_SECONDS,
        give_up_after_seconds=GIVE_UP_AFTER_SECONDS,
    )
    return published.output_set


def _read_small(
    scope: CallScope, files: Sequence[FileToPublish]
) -> tuple[list[InlineAttachment], list[FileToPublish], list[FileToPublish]]:
    """Return the bytes of the small files, these files, and the large ones, in the given order.

    Every file has been opened then. Raises ToolRefused.
    """
    inline: list[InlineAttachment] = []
    small: list[FileToPublish] = []
    large: list[FileToPublish] = []
    left_bytes = MAX_INLINE_BYTES
    for file in files:
        name = file.set_name
        with _open(scope, file) as source:
            before = os.fstat(source.fileno())
            if before.st_size > min(INLINE_FILE_BYTES, left_bytes):
                large.append(file)
                continue
            data = source.read(before.st_size + 1)
            after = os.fstat(source.fileno())
        if len(data) != before.st_size or after.st_mtime_ns != before.st_mtime_ns:
            raise _changed(file.path)
        left_bytes -= len(data)
        inline.append(InlineAttachment(name=name, data=data, mime_type=mime_type_of(Attachment(name, data))))
        small.append(file)
    return inline, small, large


def _open(scope: CallScope, file: FileToPublish) -> BinaryIO:
    """Open the file, through no link. Raises ToolRefused."""
    try:
        file.set_name.encode()
        return open_for_reading(scope.workspace, file.path)
    except UnicodeEncodeError:
        raise ToolRefused(
            Reason.ATTACHMENTS_INVALID_NAME.value,
            f"{shown_path(file.path)}: its name is no UTF-8 text; give it another `name`",
        ) from None
    except MaterializeError as error:
        refused = refused_path(error, file.path)
        if error.reason is MaterializeReason.NOT_FOUND and scope.had_earlier_runner:
            raise ToolRefused(
                refused.reason,
                f"{shown_path(file.path)} is not in the workspace. What you wrote before your runner was"
                " replaced, or before you waited for a person, is lost: write it and publish it again",
            ) from None
        raise refused from None


@contextmanager
def _naming(files: Sequence[FileToPublish]) -> Iterator[None]:
    """Add the path to a refusal in the block that is about one of the files."""
    try:
        yield
    except MeshError as error:
        index = error.facts.get("index", "0" if len(files) == 1 else "")
        if index.isdecimal() and int(index) < len(files):
            error.facts["file"] = files[int(index)].path
        raise
    except MaterializeError as error:
        raise refused_path(error, files[0].path) from None


def _refusal(error: MeshError) -> ToolRefused:
    """Return the refusal of files that are not published.

    It has the path and the numbers of the error, such as the limit of the tenant.
    """
    if may_succeed_later(error):
        return ToolRefused(
            error.reason.value,
            "the files were not published, because something that it needs is unavailable"
            f" ({error.message}); publish them again later",
        )
    path = error.facts.get("file", "")
    if error.reason is Reason.UPLOAD_HASH_DIFFERS:
        return _changed(path)
    facts = [f"{key}: {value}" for key, value in sorted(error.facts.items()) if key not in _HIDDEN_FACTS]
    text = f"{error.message} ({', '.join(facts)})" if facts else error.message
    return ToolRefused(error.reason.value, f"{shown_path(path)}: {text}" if path else text)


def _unknown(why: str) -> ToolRefused:
    return ToolRefused(
        "OUTCOME_UNKNOWN",
        f"{why}, so the files of this call may have been published, or not. If they are needed, publish them"
        " again: the same bytes are stored once, and at worst there are two sets of the same files.",
    )


def _changed(path: str) -> ToolRefused:
    return ToolRefused(
        "FILE_CHANGED",
        f"{shown_path(path)} was changed while it was read; publish it when no program writes to it",
    )


def _render(published: output_pb2.OutputSet, **more: object) -> Result:
    return {
        "set_id": published.set_id,
        "count": len(published.files),
        "total_bytes": published.total_bytes,
        "files": render_files(published.files),
        **more,
    }


PUBLISH_FILES = Tool(
    name="publish_files",
    description=(
        "Publishes files of the workspace as a set: they are kept when you are done, the sender of the task"
        " sees them, and people can download them. Publish what you were asked to make. The set stays as it"
        " is: publish again after a change. Its `set_id` is for fetch_files, and for the attachments of"
        " sessions_spawn."
    ),
    arguments=PublishFiles,
    execute=_execute,
    idempotent=True,
)
