"""The scripted agents choose their next step from the messages that they received."""

import json

from spawnmesh_devstack.conversation import Conversation, Result, Said
from spawnmesh_devstack.scripted_agents import Reply, play

DIRECTORY = ".spawnmesh/attachments/att_1"
NOTE = Said(f"Attached files: 3, 9 bytes in all, in `{DIRECTORY}` (relative to the workspace).")
CHILD = "ses_" + "0" * 26
SET = "att_" + "0" * 26
SHA = "ab" * 32


def listed(sha256: str = SHA) -> Result:
    names = ("ledger.csv", "journal.txt", "map.png", ".manifest.json")
    entries = [{"name": name, "kind": "file", "bytes": 3, "sha256": sha256} for name in names]
    return Result(
        "list_files", {"path": DIRECTORY}, {"truncated": False}, "\n".join(map(json.dumps, entries))
    )


def read(name: str, text: str) -> Result:
    return Result("read_file", {"path": f"{DIRECTORY}/{name}"}, {"binary": False}, text)


def spawned(**value: object) -> Result:
    return Result("sessions_spawn", {}, value or {"session_id": CHILD})


def next_move(role: str, *events: Said | Result, tools: tuple[str, ...] = ()) -> Reply:
    return play(Conversation(f"You are the {role} here.", frozenset(tools), (NOTE, *events)))


def report(text: str) -> Said:
    return Said(f"Session {CHILD} (lines) has finished. Its result:\n\n{text}")


def test_coordinator_hands_every_file_to_the_analyst_by_path_and_a_brief_by_value():
    (call,) = next_move("coordinator", listed()).calls

    handed = call.arguments["attachments"]
    assert [item.get("path") for item in handed[:-1]] == [
        f"{DIRECTORY}/{name}" for name in ("journal.txt", "ledger.csv", "map.png")
    ]
    assert "content" in handed[-1]
    assert call.arguments["agent_id"] == "analyst"


def test_coordinator_waits_for_a_child_it_has_not_heard_from():
    other = Said("Session ses_9 (other) has finished. Its result:\n\nlines: 1")
    (call,) = next_move("coordinator", listed(), spawned(), other).calls

    assert (call.tool, call.arguments["session_ids"]) == ("sessions_wait", [CHILD])


def test_coordinator_spawns_again_after_a_spawn_that_was_not_made():
    not_spawned = Result("sessions_spawn", {}, {}, raw="NOT_SPAWNED: the runner was replaced")
    (call,) = next_move("coordinator", listed(), not_spawned).calls
    assert (call.tool, call.arguments["agent_id"]) == ("sessions_spawn", "analyst")
    (wait,) = next_move("coordinator", listed(), not_spawned, spawned()).calls
    assert wait.tool == "sessions_wait"


def test_coordinator_verifies_only_after_it_was_asked_and_has_looked_again():
    told = (listed(), spawned(), report(f"sha256 of map.png: {SHA}"))
    revise = Said("Your answer was not accepted (revision 1 of at most 3).")

    assert "verified" not in next_move("coordinator", *told).text
    assert next_move("coordinator", *told, revise).calls[0].tool == "list_files"
    assert next_move("coordinator", *told, revise, listed()).text.endswith("verified: yes")
    assert "verified: no" in next_move("coordinator", *told, revise, listed("cd" * 32)).text


def test_analyst_answers_from_the_tool_results_alone():
    table = read("ledger.csv", "day,amount\n1,40\n2,-7\n")
    picture = Result("read_file", {"path": f"{DIRECTORY}/map.png"}, {"binary": True, "sha256": SHA})
    reads = (listed(), table, picture, spawned())

    answer = next_move("analyst", *reads, report("lines: 12"))

    assert answer.text.splitlines() == ["sum of amount: 33", "lines: 12", f"sha256 of map.png: {SHA}"]


def test_analyst_that_can_publish_writes_and_publishes_its_figures_before_it_answers():
    picture = Result("read_file", {"path": f"{DIRECTORY}/map.png"}, {"binary": True, "sha256": SHA})
    table = read("ledger.csv", "day,amount\n1,40\n2,-7\n")
    known = (listed(), table, picture, spawned(), report("lines: 12"))
    figures = next_move("analyst", *known).text
    tools = ("write_file", "publish_files")

    (write,) = next_move("analyst", *known, tools=tools).calls
    assert (write.tool, write.arguments) == ("write_file", {"path": "figures.txt", "content": figures})
    written = Result("write_file", write.arguments, {"bytes": len(figures)})
    (publish,) = next_move("analyst", *known, written, tools=tools).calls
    assert (publish.tool, publish.arguments) == ("publish_files", {"paths": ["figures.txt"]})
    published = Result("publish_files", publish.arguments, {"set_id": SET})
    assert next_move("analyst", *known, written, published, tools=tools).text == figures
    refused = Result("publish_files", publish.arguments, {})
    assert "could not be published" in next_move("analyst", *known, written, refused, tools=tools).text


def test_coordinator_that_can_fetch_answers_from_the_published_file():
    names = f"It published 1 file, 9 bytes.\n```\n- {SET}/figures.txt (9 bytes)\n```\n\n"
    ended = Said(f"Session {CHILD} (figures) has finished. {names}Its result:\n\nlines: 1")
    tools = ("fetch_files",)
    path = f".spawnmesh/attachments/{SET}"

    (fetch,) = next_move("coordinator", listed(), spawned(), ended, tools=tools).calls
    assert (fetch.tool, fetch.arguments) == ("fetch_files", {"set_id": SET})
    fetched = Result("fetch_files", fetch.arguments, {"rel_dir": path})
    (look,) = next_move("coordinator", listed(), spawned(), ended, fetched, tools=tools).calls
    assert (look.tool, look.arguments) == ("read_file", {"path": f"{path}/figures.txt"})
    content = Result("read_file", look.arguments, {"binary": False}, "lines: 2")
    answer = next_move("coordinator", listed(), spawned(), ended, fetched, content, tools=tools)
    assert answer.text.splitlines()[1:] == ["lines: 2"]

    assert next_move("coordinator", listed(), spawned(), ended).text.splitlines()[1:] == ["lines: 1"]
    gone = Result("fetch_files", fetch.arguments, {})
    told = next_move("coordinator", listed(), spawned(), ended, gone, tools=tools)
    assert "could not be fetched" in told.text
    nothing = next_move("coordinator", listed(), spawned(), report("lines: 1"), tools=tools)
    assert "has not published" in nothing.text


def test_analyst_says_so_when_its_child_failed():
    picture = Result("read_file", {"path": f"{DIRECTORY}/map.png"}, {"sha256": SHA})
    table = read("ledger.csv", "amount\n1\n")
    ended = Said(f"Session {CHILD} has ended without a result: KILLED, KILLED.")

    assert "without a result" in next_move("analyst", listed(), table, picture, spawned(), ended).text
    assert "could not be spawned" in next_move("analyst", listed(), table, picture, spawned(error="no")).text


def test_agent_without_files_says_what_it_lacks():
    assert "no files" in play(Conversation("You are the counter.", frozenset(), (Said("hello"),))).text


def test_any_other_agent_tells_what_its_files_are():
    there = Conversation("You are helpful.", frozenset({"list_files"}), (NOTE, listed()))

    assert f"map.png: 3 bytes, sha256 {SHA}" in play(there).text
