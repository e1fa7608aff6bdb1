"""Estimate the usage that a provider does not report."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from spawnmesh_model_router.clients.providers.provider_request import ProviderRequest
from spawnmesh_model_router.domain.answer import Block, Usage, block_bytes
from spawnmesh_model_router.domain.images import ImageOutcome
from spawnmesh_model_router.domain.policy import IMAGE_TOKENS, estimated_tokens


@dataclass(frozen=True, slots=True)
class UsageEstimate:
    """Estimates the usage of calls of one request."""

    request: ProviderRequest

    def complete(self, reported: Usage, blocks: Iterable[Block], images: ImageOutcome) -> Usage:
        """Return the reported usage of an answer, with estimates for counts that are missing."""
        if reported.input and reported.output:
            return reported
        written = sum(map(block_bytes, blocks))
        return replace(
            reported,
            input=reported.input or self.input_tokens(images),
            output=reported.output or estimated_tokens(written),
        )

    def input_tokens(self, images: ImageOutcome) -> int:
        """Return the estimated tokens of the request."""
        image_count = self.request.image_count if images is ImageOutcome.SENT else 0
        return estimated_tokens(self.request.text_bytes) + image_count * IMAGE_TOKENS
