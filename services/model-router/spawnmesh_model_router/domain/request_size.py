"""The size of a request, against the context window of a model."""

from dataclasses import dataclass
from typing import Final

from spawnmesh_model_router.domain.policy import IMAGE_TOKENS, estimated_tokens

_MAX_TEXT_BYTES_PER_TOKEN: Final = 8
"""Only monotonous text has more bytes in a token, such as a long run of blanks."""


@dataclass(frozen=True, slots=True)
class RequestSize:
    """The size of a request. `max_output` is in tokens; 0 if the caller names no limit.

    The router has no provider's vocabulary, so tokens are estimates.
    """

    text_bytes: int
    image_count: int
    max_output: int

    def fits(self, context_window: int, max_output: int, *, can_see: bool) -> bool:
        """Return whether the estimated input and the requested output fit into the window.

        `max_output` is the model's own limit of the output.
        """
        images = self.image_count * IMAGE_TOKENS if can_see else 0
        output = min(self.max_output, max_output)
        return estimated_tokens(self.text_bytes) + images + output <= context_window

    def may_fit(self, context_window: int) -> bool:
        """Return whether the text may fit: a wrong estimate must not refuse it unasked."""
        return self.text_bytes <= context_window * _MAX_TEXT_BYTES_PER_TOKEN
