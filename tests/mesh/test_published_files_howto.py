"""The commands and programs of docs/howto/published-files.md work unchanged."""

import asyncio
import json
import re
from pathlib import Path
from uuid import uuid4

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import ROOT, shell

pytestmark = pytest.mark.timeout(420)

SET_UP, LIST, HTTP, WORKER, HAND_ON = typed("docs/howto/published-files.md")
CLIENT, WRITER, EDITOR, TEST = typed("docs/howto/published-files.md", "python")
(PRINTED,) = typed("docs/howto/published-files.md", "text")
HTTP_PAGE = (ROOT / "docs" / "howto" / "http.md").read_text()
GATEWAY = re.search(r"^```sh\n(.*?)^```", HTTP_PAGE, re.MULTILINE | re.DOTALL)
EDITING = """
    async with connect() as mesh:
        worker = Worker(mesh)
        worker.agent("editor")(edit)
        worker.agent("writer")(write)
        await worker.run()
"""


class Person:
    """A person who types the commands of the page for a tenant of this test, in a folder."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.tenant = f"page-of-files-{uuid4().hex[:8]}"
        self.ids: dict[str, str] = {}

    async def type(self, commands: str) -> str:
        typed = commands.replace("acme", self.tenant)
        for name, value in self.ids.items():
            typed = typed.replace(name, value)
        script = f"cd {self._folder}\nexport SPAWNMESH_TENANT={self.tenant}\n{typed}"
        return await shell(script, self._stack, self._folder)


@pytest.fixture
async def person(stack: Stack, tmp_path: Path) -> Person:
    """Return a person after the set-up of the page."""
    one = Person(stack, tmp_path)
    printed = await one.type(SET_UP)
    (tmp_path / "printed.txt").write_text(printed)
    [session_id] = set(re.findall(r"spawnmesh outputs (ses_\w{26})", printed))
    one.ids["ses_…"] = session_id
    [output] = json.loads(await one.type("spawnmesh outputs ses_… --json"))["output_sets"]
    one.ids["att_…"] = output["set_id"]
    return one


async def test_commands_work_as_they_are_typed(person: Person, tmp_path: Path) -> None:
    printed = (tmp_path / "printed.txt").read_text()
    assert printed.endswith(PRINTED.replace("ses_…", person.ids["ses_…"]))
    listed = await person.type(LIST)
    for shown in ("report.md", "pumps.csv", person.ids["att_…"], "text/markdown"):
        assert shown in listed
    assert sorted(path.name for path in (tmp_path / "pumps").iterdir()) == ["pumps.csv", "report.md"]
    await person.type(HAND_ON)
    found = json.loads(await person.type("spawnmesh sessions --view full --limit 2 --json"))["sessions"]
    names = [[file["name"] for file in one["receipt"]["files"]] for one in found]
    assert names == [["first.md", "report.md", "pumps.csv"], ["report.md"]]


async def test_program_lists_saves_and_hands_on(person: Person, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    printed = await person.type("SESSION_ID=ses_… SPAWNMESH_TOKEN=$(spawnmesh token) python client.py")
    assert "('report.md', 27), ('pumps.csv', 16)" in printed
    assert "# Pumps\n\nAll of them work.\n" in printed
    assert "report.md: 27 bytes" in printed, "the answer of the next session"
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["pumps.csv", "report.md"]


async def test_worker_publishes(person: Person, tmp_path: Path) -> None:
    (tmp_path / "writer.py").write_text(WRITER)
    started = WORKER.replace("&\n", "> writer.log 2>&1 &\n")
    try:
        printed = await person.type(f"{started}\nkill -TERM $!\nwait $!")
    except AssertionError:
        raise AssertionError((tmp_path / "writer.log").read_text()) from None
    [session_id] = set(re.findall(r"spawnmesh outputs (ses_\w{26})", printed))
    assert PRINTED.replace("ses_…", session_id) in printed


async def test_function_publishes_what_its_child_has_published(person: Person, tmp_path: Path) -> None:
    """The functions of both programs of the page are those of one worker."""
    begin, _, _ = WRITER.partition("async def main()")
    program = f"{begin}{EDITOR}\n\nasync def main() -> None:{EDITING}\n\nasyncio.run(main())\n"
    (tmp_path / "editor.py").write_text(program)
    writer = '{"agent_id": "writer"}'
    agent = '{"agent_id": "editor", "spawnable_agents": ["writer"]}'
    token = "spawnmesh token --runner --tenant acme --agent editor --agent writer"
    await person.type(
        f"""
        echo '{writer}' | spawnmesh agent put -
        echo '{agent}' | spawnmesh agent put -
        SPAWNMESH_TOKEN=$({token}) python editor.py > editor.log 2>&1 &
        spawnmesh spawn "Edit." --agent editor --external --wait --json > edited.json
        kill -TERM $!
        wait $!
        """
    )
    person.ids["ses_…"] = json.loads((tmp_path / "edited.json").read_text())["session_id"]
    listed = json.loads(await person.type("spawnmesh outputs ses_… --json"))["output_sets"]
    names = [file["name"] for one in listed for file in one["files"]]
    assert names == ["checked-report.md", "checked-pumps.csv"]


@pytest.mark.usefixtures("gateway")
async def test_http_lists_and_reads(person: Person) -> None:
    assert GATEWAY is not None
    printed = await person.type(f"{GATEWAY[1]}\n{HTTP}")
    assert '"request_id":"call:' in printed
    assert printed.endswith("# Pumps\n\nAll of them work.\n\n")


async def test_test_of_the_page_passes(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    process = await asyncio.create_subprocess_exec(
        str(ROOT / ".venv" / "bin" / "pytest"), "-q", "-c", "pytest.ini", "-p", "no:cacheprovider", ".",
        cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    printed, _ = await process.communicate()
    assert "1 passed" in printed.decode(), printed.decode()
