"""`spawnmesh transcript search` prints the file of a hit."""

from tests.support.commands import Commands
from tests.support.transcript.bodies import user
from tests.support.transcript.tier import Tiered, long_text, stored


async def test_a_hit_is_printed_with_its_file_and_the_byte_to_read(
    tiered: Tiered, commands: Commands
) -> None:
    file_id = await stored(tiered, f"{long_text('é')} the needle {long_text('b')}")
    await tiered.session.append([user("a needle in no file")])
    target = tiered.session.service.target
    options = ("--session-target", target, "--transcript-target", target, "transcript", "search")
    env = {"SPAWNMESH_TOKEN": tiered.session.client_token(), "PATH": "", "COLUMNS": "200"}
    status, out, err = await commands.run(*options, tiered.session.session_id, "needle", env=env)
    assert (status, err) == (0, "")
    in_message, in_file = [line for line in out.splitlines() if "message.content" in line]
    assert in_message.endswith("message.content[0].text.text")
    text_before = f"{long_text('é')} the "
    assert in_file.endswith(f"message.content[0].text.text  {file_id} at byte {len(text_before.encode())}")
