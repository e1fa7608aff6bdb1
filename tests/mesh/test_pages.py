"""The commands and programs of pages without a test of their own work as they are typed.

Ids that a page shortens, such as `ses_…`, are those of sessions that the test makes before.
"""

import re
from pathlib import Path
from uuid import uuid4

import pytest
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import shell

ID = "grep -oE 'ses_\\w{26}' | sed -n 1p"
BEGIN = f"""set -x
spawnmesh tenant create "$SPAWNMESH_TENANT" > /dev/null
spawnmesh tenant update "$SPAWNMESH_TENANT" --set attachments.download_url_lifetime=60s \\
    --set transcripts.stub_large_tool_payloads=true > /dev/null
printf 'one' > small.txt
head -c 900000 /dev/zero > large.bin
SESSION=$(spawnmesh spawn "Say something." --attach small.txt --attach large.bin --open --json | {ID})
spawnmesh wait $SESSION > /dev/null
SET=$(spawnmesh attachments list --session $SESSION --json | grep -oE 'att_\\w{{26}}' | sed -n 1p)
"""
BEFORE = {
    "docs/howto/long-work.md": """
spawnmesh transcript tier --apply
OPERATION=$(spawnmesh operations list --json | grep -oE 'opr_\\w{26}' | sed -n 1p)
""",
    "docs/howto/tokens.md": "TOKEN=$(spawnmesh token)\n",
    "docs/howto/transcripts.md": """
spawnmesh transcript export $SESSION --out session.jsonl > /dev/null
CHECKPOINT=$(spawnmesh transcript verify $SESSION | grep -oE '[0-9]+:[0-9a-f]+:inc_\\w+')
""",
}
"""Commands before those of a page, which make what its ids stand for."""
SHORTENED = {
    "opr_…": "$OPERATION",
    "att_…": "$SET",
    "ses_…": "$SESSION",
    "601:9f2c…:inc_…": "$CHECKPOINT",
    "--fork-at 4": "--fork-at 3",  # The scripted model calls a tool in entry 4.
}
SAYS_NO = r"^(spawnmesh transcript search .*|spawnmesh session diff .* --exit-code)$"
"""Commands with the exit code 1 for "nothing found" or "there are differences"."""
MODELS = r"\b(openai/gpt-[\w.-]+|anthropic/claude-[\w-]+)"
PAGES = (
    "docs/howto/attachments.md",
    "docs/howto/audit.md",
    "docs/howto/find-sessions.md",
    "docs/howto/long-work.md",
    "docs/howto/models.md",
    "docs/howto/tokens.md",
    "docs/howto/transcripts.md",
)


def script_of(page: str, tenant: str) -> str:
    """Return the commands of the page with the ids, models and the tenant of the test."""
    text = "\n".join(typed(page))
    for short, variable in SHORTENED.items():
        text = text.replace(short, variable)
    text = re.sub(SAYS_NO, r"\1 || test $? = 1", text, flags=re.MULTILINE)
    text = re.sub(MODELS, "scripted/agent", text)
    return re.sub(r"\b(acme|demo)\b", tenant, text)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
async def test_commands_work_as_they_are_typed(stack: Stack, tmp_path: Path, page: str) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    script = BEGIN + BEFORE.get(page, "") + script_of(page, tenant)
    printed = await shell(script, stack, tmp_path, tmp_path, SPAWNMESH_TENANT=tenant)
    assert printed
    assert "Traceback" not in printed
