"""The example on the page about models is a valid configuration."""

import re
from pathlib import Path

from spawnmesh_model_router.domain.router_config import RouterConfig

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "models.md").read_text()


def test_the_example_on_the_page_is_valid() -> None:
    [example] = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    config = RouterConfig.model_validate_json(example)
    assert config.models["openai/gpt-5-mini"].api == "responses"
    assert config.models["anthropic/claude-haiku-4-5"].prices.cache_read == 100_000
