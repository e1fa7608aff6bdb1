"""Images that a prompt names and does not carry: found in the run's own workspace and nowhere else."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from spawnmesh.content.v1 import message_pb2
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_materialize import EntryKind, MaterializeError, list_directory, open_for_reading

from spawnmesh_runner.assignment import Assignment
from spawnmesh_runner.context import text_of
from spawnmesh_runner.in_thread import finish_in_thread

MAX_IMAGES = 16
MAX_IMAGE_BYTES = 3_750_000
"""A larger one is more than 5 MB once it is written in base64, which providers refuse together with the whole request."""
MAX_TOTAL_BYTES = 8 * 1024 * 1024
_MAX_NAMES = 64
_MAX_NAME_BYTES = 1024

# A name is cut out of a longer one by ASCII alone: Chinese and Japanese leave no blanks around it.
_BEGIN = r"(?<![A-Za-z0-9_/\\.-])"
_END = r"(?![A-Za-z0-9_/\\-]|\.[A-Za-z0-9])"
_EXTENSION = re.compile(rf"\.(?:png|jpe?g|gif|webp){_END}", re.IGNORECASE)
_BREAKS = frozenset(" \t\r\n\"'`<>|()[]{},;*?=:")
_SIGNATURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)


async def find_named_images(
    assignment: Assignment, entries: Sequence[entry_pb2.Entry]
) -> list[generation_pb2.NamedImage]:
    """The images of the workspace that the newest message of a user names, by path or by an attachment's name, in its order.

    What is not there, is too large or is no image is left out: a word that looks like a name is no reason to fail.
    """
    prompt = _newest_prompt(entries)
    if not _EXTENSION.search(prompt):
        return []
    rel_dir = assignment.claimed.session.receipt.rel_dir
    return await finish_in_thread(lambda: _read(assignment.workspace, rel_dir, prompt))


def named_paths(prompt: str, attachments: Collection[str], rel_dir: str) -> list[tuple[str, str]]:
    """What the prompt names, with the path of it in the workspace, in its order and each path once."""
    begin_or_dir = f"(?:{_BEGIN}|(?<={re.escape(rel_dir)}/))"
    found = [
        (match.start(), name, f"{rel_dir}/{name}")
        for name in attachments
        if _EXTENSION.search(name) and (match := re.search(f"{begin_or_dir}{re.escape(name)}{_END}", prompt))
    ]
    for match in list(_EXTENSION.finditer(prompt))[:_MAX_NAMES]:
        begin = match.start()
        while begin and prompt[begin - 1] not in _BREAKS and match.end() - begin < _MAX_NAME_BYTES:
            begin -= 1
        name = prompt[begin : match.end()]
        found.append((begin, name, name.removeprefix("./")))
    paths: dict[str, str] = {}
    for _, name, path in sorted(found, key=lambda one: one[0]):
        if len(name.encode("utf-8", "replace")) <= _MAX_NAME_BYTES:
            paths.setdefault(path, name)
    return [(name, path) for path, name in paths.items()]


def mime_type_of(head: bytes) -> str:
    """By the file's own first bytes; empty for what models are not shown."""
    return next((mime_type for signature, mime_type in _SIGNATURES if signature.match(head)), "")


def _newest_prompt(entries: Sequence[entry_pb2.Entry]) -> str:
    newest = next((one for one in reversed(entries) if one.body.message.role == message_pb2.ROLE_USER), None)
    return text_of(newest.body.message) if newest is not None else ""


def _read(workspace: Path, rel_dir: str, prompt: str) -> list[generation_pb2.NamedImage]:
    images: list[generation_pb2.NamedImage] = []
    left_bytes = MAX_TOTAL_BYTES
    for name, path in named_paths(prompt, _attachments(workspace, rel_dir), rel_dir):
        try:
            with open_for_reading(workspace, path) as file:
                data = file.read(MAX_IMAGE_BYTES + 1)
        except MaterializeError:
            continue
        mime_type = mime_type_of(data)
        if not mime_type or len(data) > min(MAX_IMAGE_BYTES, left_bytes):
            continue
        left_bytes -= len(data)
        image = message_pb2.Image(mime_type=mime_type, data=data)
        images.append(generation_pb2.NamedImage(name=name, image=image))
        if len(images) == MAX_IMAGES:
            break
    return images


def _attachments(workspace: Path, rel_dir: str) -> list[str]:
    if not rel_dir:
        return []
    try:
        return [entry.name for entry in list_directory(workspace, rel_dir) if entry.kind is EntryKind.FILE]
    except MaterializeError:
        return []
