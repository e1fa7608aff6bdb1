"""Content for the attributes of spans, without secrets and files, and no longer than allowed.

Operators and tenants switch it on. The model router has the content of model calls from here, and
the runner that of tool calls.
"""

import json
from dataclasses import dataclass
from typing import Final

from spawnmesh_core.call_arguments import given_arguments
from spawnmesh_core.json_text import NotJson, TooManyNodes
from spawnmesh_core.secrets import mask_document, mask_text
from spawnmesh_core.spawn_redaction import shown_block

# A text is masked with so much more of it than is kept, or a secret at the cut would stay.
_MARGIN_CHARS: Final = 8192
_TEXT_SHARE: Final = 4
"""One text takes at most this part of the bytes: 1 / 4."""
_LEFT_OUT: Final = "[left out: no JSON that can be searched for files]"


@dataclass(frozen=True, slots=True)
class SpanContent:
    """Renders texts and the arguments of calls for attributes of at most `max_bytes`."""

    max_bytes: int

    def text(self, text: str) -> str:
        """Return the text without secrets, and its beginning if it takes more than a quarter of the
        bytes.
        """
        limit = self.max_bytes // _TEXT_SHARE
        masked = _masked(text[: limit + _MARGIN_CHARS]).encode("utf-8", "replace")
        if len(text) <= limit and len(masked) <= limit:
            return masked.decode()
        kept = masked[:limit].decode("utf-8", "ignore")
        return f"{kept}… [{len(text)} characters in all]"

    def arguments(self, tool_name: str, block_json: str) -> str:
        """Return the arguments of a call as JSON, without the files of a spawn, and cut as a text.

        Arguments that may have files and cannot be searched for them are left out.
        """
        try:
            arguments = given_arguments(shown_block(tool_name, block_json))
            return self.text(json.dumps(arguments, ensure_ascii=False))
        except (NotJson, RecursionError):
            return _LEFT_OUT


def _masked(text: str) -> str:
    """Return the text without secrets, also without those that only their names in JSON show."""
    try:
        masked: str = json.loads(mask_document(json.dumps(text)))
    except TooManyNodes:
        return mask_text(text)
    return masked
