"""The agents of the demo, played by rule: every figure that they report is computed from the tool
results in the request.

The server keeps no state between requests. The next move of an agent follows from the conversation
alone, so a broken path shows up as a wrong figure, or as an agent that says what it lacks.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spawnmesh_devstack.conversation import Conversation, Result

COORDINATOR, ANALYST, COUNTER, READER, SEARCHER = "coordinator", "analyst", "counter", "reader", "searcher"
CALLER = "caller"
VERIFIED = "verified: yes"
BRIEF_NAME = "brief.md"
FIGURES_NAME = "figures.txt"

_ROLE = re.compile(rf"You are the ({COORDINATOR}|{ANALYST}|{COUNTER}|{READER}|{SEARCHER}|{CALLER})\b")
_REFERENCE = re.compile(r"\[Tool output (file_[0-9a-z]{26}) \|")
_CODE_WORD = re.compile(r"the code word is ([a-z0-9]+)")
_TOLD_CALL = re.compile(r"(\w+) (\{.*\})")
_PUBLISHED = re.compile(rf"- (att_[0-9a-z]{{26}})/{re.escape(FIGURES_NAME)} ")
_FINISHED, _RESULT = "has finished.", "Its result:\n"
_NOT_SPAWNED = "NOT_SPAWNED: "
_REVISE = "Your answer was not accepted"
_WAIT_SECONDS = 120


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of an agent: a text, or tool calls, and what it thinks before."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    thinking: str = ""


class Lacking(Exception):
    """The conversation lacks something that the agent needs. The text says what, and becomes the
    answer.
    """


def play(conversation: Conversation) -> Reply:
    """Return the next move of the agent that the system prompt names; of any other agent, a plain
    answer about its files.
    """
    role = _ROLE.search(conversation.system_prompt)
    moves: dict[str, Callable[[Conversation], Reply]] = {
        COORDINATOR: _coordinate,
        ANALYST: _analyse,
        COUNTER: _count,
        READER: _recall,
        SEARCHER: _look_up,
        CALLER: _call,
    }
    try:
        return moves[role.group(1)](conversation) if role else _plain(conversation)
    except Lacking as lacking:
        return Reply(f"I cannot go on: {lacking}.")


def open_files(conversation: Conversation) -> Reply | None:
    """List and read the attached files. Return None once that is done, because then another model
    has to answer.
    """
    directory = conversation.attachments_directory
    if directory is None:
        return None
    try:
        if (listed := _listing(conversation, directory)) is None:
            return _list(directory)
        for name in listed:
            if isinstance(content := _content(conversation, f"{directory}/{name}"), Reply):
                return content
    except Lacking:
        return None
    return None


def _coordinate(conversation: Conversation) -> Reply:
    """Give everything to an analyst; after a request for a revision, compare the analyst's hash
    with that of the own file.

    An agent that can fetch files answers from the file that the analyst has published.
    """
    directory = _directory(conversation)
    if (listed := _listing(conversation, directory)) is None:
        return _list(directory)
    if not (spawned := _spawns(conversation)):
        brief = (
            "Give the sum of the column `amount`, the number of lines of the text, and the SHA-256 of "
            "the picture."
        )
        files: list[dict[str, str]] = [{"path": f"{directory}/{name}"} for name in sorted(listed)]
        handed = [*files, {"name": BRIEF_NAME, "content": brief, "encoding": "utf8"}]
        task = f"Work on the attached files as {BRIEF_NAME} says, and report the three figures."
        return _spawn(ANALYST, task, "figures", handed)
    report = _report(conversation, spawned[-1].value)
    if not isinstance(report, Reply) and "fetch_files" in conversation.tools:
        report = _fetched_figures(conversation)
    if isinstance(report, Reply):
        return report
    if (since := conversation.since(_REVISE)) is None:
        return Reply(f"The figures of the attached files:\n{report}")
    if (again := _listing(since, directory)) is None:
        return _list(directory)
    own = _find(again, ".png")
    verdict = (
        VERIFIED if str(again[own].get("sha256")) in report else f"verified: no, {own} has another hash here"
    )
    return Reply(f"The figures of the attached files, checked against my own copy:\n{report}\n{verdict}")


def _analyse(conversation: Conversation) -> Reply:
    """Read the brief, the table and the picture, and leave the lines of the text to a counter.

    An agent that can publish files publishes its figures, too.
    """
    directory = _directory(conversation)
    if (listed := _listing(conversation, directory)) is None:
        return _list(directory)
    table, picture, text = (f"{directory}/{_find(listed, suffix)}" for suffix in (".csv", ".png", ".txt"))
    spawned = _spawns(conversation)
    if not spawned:
        reads = (_read(f"{directory}/{BRIEF_NAME}"), _read(table), _read(picture))
        spawn = _spawn(COUNTER, "Count the lines of the attached text.", "lines", [{"path": text}])
        return Reply(calls=(*(call for read in reads for call in read.calls), *spawn.calls))
    if isinstance(content := _content(conversation, table), Reply):
        return content
    report = _report(conversation, spawned[-1].value)
    if isinstance(report, Reply):
        return report
    looked = conversation.results("read_file", path=picture)
    if not looked or not (sha256 := looked[-1].value.get("sha256")):
        raise Lacking("the picture could not be read")
    figures = f"sum of amount: {_sum(content)}\n{report.strip()}\nsha256 of {_find(listed, '.png')}: {sha256}"
    if "publish_files" in conversation.tools and (step := _publish(conversation, figures)):
        return step
    return Reply(figures)


def _count(conversation: Conversation) -> Reply:
    directory = _directory(conversation)
    if (listed := _listing(conversation, directory)) is None:
        return _list(directory)
    content = _content(conversation, f"{directory}/{_find(listed, '.txt')}")
    return content if isinstance(content, Reply) else Reply(f"lines: {len(content.splitlines())}")


def _recall(conversation: Conversation) -> Reply:
    """Read every file once, then report the code word of the first, which is behind the reference
    that replaced its content.
    """
    directory = _directory(conversation)
    if (listed := _listing(conversation, directory)) is None:
        return _list(directory)
    for name in sorted(listed):
        if not conversation.results("read_file", path=f"{directory}/{name}"):
            return _read(f"{directory}/{name}")
    first = conversation.results("read_file", path=f"{directory}/{min(listed)}")[0]
    if (reference := _REFERENCE.match(first.text)) is None:
        raise Lacking("the first file is not a reference")
    if not (described := conversation.results("transcript_describe", file_id=reference.group(1))):
        if "transcript_describe" not in conversation.tools:
            raise Lacking("there is no tool to read a reference with")
        return Reply(calls=(ScriptedCall("transcript_describe", {"file_id": reference.group(1)}),))
    if (found := _CODE_WORD.search(described[-1].text)) is None:
        raise Lacking("the reference has no code word behind it")
    return Reply(f"The code word is {found.group(1)}.")


def _look_up(conversation: Conversation) -> Reply:
    """Read every file once, then report the code word that a search of the conversation finds."""
    directory = _directory(conversation)
    if (listed := _listing(conversation, directory)) is None:
        return _list(directory)
    for name in sorted(listed):
        if not conversation.results("read_file", path=f"{directory}/{name}"):
            return _read(f"{directory}/{name}")
    if not (found := conversation.results("transcript_search")):
        return Reply(calls=(ScriptedCall("transcript_search", {"words": '"code word"'}),))
    hits = found[-1].items
    words = [word for hit in hits for word in _CODE_WORD.findall(hit["text"])]
    if not words:
        raise Lacking("the search found no code word")
    return Reply(f"{len(hits)} hits; the code word is {words[0]}.")


def _call(conversation: Conversation) -> Reply:
    """Make the requested calls, each a line with a tool's name and its arguments as JSON, one after
    the other, and report the last result.
    """
    told = _TOLD_CALL.findall((conversation.said() or [""])[0])
    if not told:
        raise Lacking("there is no call in the task")
    tools = {tool for tool, _ in told}
    if missing := tools - set(conversation.tools):
        raise Lacking(f"there is no tool {', '.join(sorted(missing))}")
    made_count = sum(len(conversation.results(tool)) for tool in tools)
    if made_count < len(told):
        tool, arguments = told[made_count]
        return Reply(calls=(ScriptedCall(tool, json.loads(arguments)),))
    return Reply(conversation.results(told[-1][0])[-1].raw)


def _plain(conversation: Conversation) -> Reply:
    directory = conversation.attachments_directory
    if directory is None or "list_files" not in conversation.tools:
        heard = (conversation.said() or [""])[-1]
        return Reply(
            f"I am the scripted model: I follow rules and understand nothing. You said: {heard[:500]}"
        )
    if (listed := _listing(conversation, directory)) is None:
        return _list(directory)
    lines = [
        f"{name}: {entry.get('bytes')} bytes, sha256 {entry.get('sha256')}" for name, entry in listed.items()
    ]
    return Reply("\n".join(["I am the scripted model. The attached files:", *lines]))


def _directory(conversation: Conversation) -> str:
    directory = conversation.attachments_directory
    if directory is None:
        raise Lacking("no files were attached")
    return directory


def _listing(conversation: Conversation, directory: str) -> dict[str, Mapping[str, Any]] | None:
    """Return the visible files of the directory by name; None before it was listed."""
    results = conversation.results("list_files", path=directory)
    if not results:
        return None
    if "truncated" not in results[-1].value:
        raise Lacking("the attached files could not be listed")
    return {
        entry["name"]: entry
        for entry in results[-1].items
        if entry["kind"] == "file" and not entry["name"].startswith(".")
    }


def _find(listed: Mapping[str, object], suffix: str) -> str:
    names = [name for name in listed if name.endswith(suffix)]
    if len(names) != 1:
        raise Lacking(f"{len(names)} files end in {suffix}, not one")
    return names[0]


def _content(conversation: Conversation, path: str) -> str | Reply:
    """Return the complete text of a file, or the call that reads its next piece."""
    pieces = conversation.results("read_file", path=path)
    if not pieces:
        return _read(path)
    last = pieces[-1].value
    if any(piece.value.get("binary") is not False for piece in pieces):
        raise Lacking("a file could not be read as text")
    if last.get("truncated"):
        return _read(path, offset=last["next_offset"])
    return "".join(piece.text for piece in pieces)


def _spawns(conversation: Conversation) -> list[Result]:
    """Return the results of the spawns, without those that must be made again."""
    return [one for one in conversation.results("sessions_spawn") if not one.raw.startswith(_NOT_SPAWNED)]


def _report(conversation: Conversation, spawned: Mapping[str, Any]) -> str | Reply:
    """Return the child's answer, or the call that waits for it."""
    session_id = spawned.get("session_id")
    if not session_id:
        raise Lacking("the child could not be spawned")
    heard = [text for text in conversation.said() if str(session_id) in text]
    for text in heard:
        if _FINISHED in text:
            return text.partition(_RESULT)[2].strip()
    if heard:
        raise Lacking("the child ended without a result")
    return Reply(
        calls=(
            ScriptedCall("sessions_wait", {"session_ids": [session_id], "timeout_seconds": _WAIT_SECONDS}),
        )
    )


def _publish(conversation: Conversation, figures: str) -> Reply | None:
    """Return the call that writes or publishes the figures as a file; None when that is done."""
    if not conversation.results("write_file", path=FIGURES_NAME):
        return Reply(calls=(ScriptedCall("write_file", {"path": FIGURES_NAME, "content": figures}),))
    if not (published := conversation.results("publish_files")):
        return Reply(calls=(ScriptedCall("publish_files", {"paths": [FIGURES_NAME]}),))
    if "set_id" not in published[-1].value:
        raise Lacking("the figures could not be published")
    return None


def _fetched_figures(conversation: Conversation) -> str | Reply:
    """Return the text of the file that a child has published, or the call that leads to it."""
    sets = [set_id for text in conversation.said() for set_id in _PUBLISHED.findall(text)]
    if not sets:
        raise Lacking(f"the child has not published {FIGURES_NAME}")
    if not (fetched := conversation.results("fetch_files", set_id=sets[-1])):
        return Reply(calls=(ScriptedCall("fetch_files", {"set_id": sets[-1]}),))
    if "rel_dir" not in fetched[-1].value:
        raise Lacking("the published file could not be fetched")
    return _content(conversation, f"{fetched[-1].value['rel_dir']}/{FIGURES_NAME}")


def _sum(content: str) -> int:
    try:
        return sum(int(row["amount"]) for row in csv.DictReader(io.StringIO(content)))
    except (KeyError, ValueError) as error:
        raise Lacking("the table has no column of whole numbers named amount") from error


def _list(directory: str) -> Reply:
    return Reply(calls=(ScriptedCall("list_files", {"path": directory}),))


def _read(path: str, **more: int) -> Reply:
    return Reply(calls=(ScriptedCall("read_file", {"path": path, **more}),))


def _spawn(agent_id: str, task: str, label: str, attachments: list[dict[str, str]]) -> Reply:
    arguments = {"agent_id": agent_id, "task": task, "label": label, "attachments": attachments}
    return Reply(calls=(ScriptedCall("sessions_spawn", arguments),))
