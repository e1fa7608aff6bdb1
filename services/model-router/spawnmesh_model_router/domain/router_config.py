"""The operator's configuration: providers, models, the primary and the aliases.

The process reads it once, when it starts.
"""

import re
from functools import cached_property
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from spawnmesh_model_router.domain.candidates import Capability, ModelRef, parse_ref
from spawnmesh_model_router.domain.images import BlindModelPolicy
from spawnmesh_model_router.domain.policy import Prices
from spawnmesh_model_router.domain.thinking import ThinkingLevel

_PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_CREDENTIAL = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+")

_EFFORT = re.compile(r"[a-z]{1,32}")

ProviderKind = Literal["openai", "openai_compatible", "anthropic", "gemini"]
OPENAI_LIKE = ("openai", "openai_compatible")
"""The kinds with OpenAI's formats."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Provider(_Strict):
    """An API and its credentials. These are references (`env:NAME`, `file:/path`), never keys."""

    kind: ProviderKind
    base_url: str | None = None
    """By default the provider's own URL. An openai_compatible provider has no default."""
    credentials: Annotated[tuple[str, ...], Field(min_length=1, max_length=16)]

    @field_validator("credentials", mode="before")
    @classmethod
    def _credentials_are_references(cls, value: object) -> object:
        if not isinstance(value, list) or not all(
            isinstance(one, str) and _CREDENTIAL.fullmatch(one) for one in value
        ):
            raise ValueError("must be a list of env:NAME or file:/absolute/path")
        if len(set(value)) != len(value):
            raise ValueError("names a credential twice")
        return tuple(value)

    @field_validator("base_url")
    @classmethod
    def _base_url_is_http(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "http://none")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise ValueError("must be an http:// or https:// address without user and password")
        return value

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        if self.kind == "openai_compatible" and self.base_url is None:
            raise ValueError("an openai_compatible provider needs base_url")
        return self


class Model(_Strict):
    """The capabilities of one model. Sizes are in tokens."""

    context_window: Annotated[int, Field(gt=0)]
    max_output: Annotated[int, Field(gt=0)]
    vision: bool = False
    tools: bool = True
    input_micros_per_million_tokens: Annotated[int, Field(ge=0)] = 0
    """Price of a million input tokens, in millionths of the currency."""
    output_micros_per_million_tokens: Annotated[int, Field(ge=0)] = 0
    """Price of a million output tokens."""
    cache_read_micros_per_million_tokens: Annotated[int, Field(ge=0)] | None = None
    """Price of a million tokens read from the provider's cache; by default the input price."""
    cache_write_micros_per_million_tokens: Annotated[int, Field(ge=0)] | None = None
    """Price of a million tokens written to the provider's cache; by default the input price."""
    api: Literal["chat", "responses"] | None = None
    """The API of an openai or openai_compatible provider; by default chat completions."""
    thinking: dict[ThinkingLevel, int | str] = Field(default_factory=dict)
    """The provider's value for each level: a word, or a budget in tokens (0 only for `off`)."""

    @field_validator("thinking")
    @classmethod
    def _thinking_is_valid(cls, value: dict[ThinkingLevel, int | str]) -> dict[ThinkingLevel, int | str]:
        for level, setting in value.items():
            if isinstance(setting, str) and not _EFFORT.fullmatch(setting):
                raise ValueError("a level's word is made of lower-case letters")
            if isinstance(setting, int) and (
                setting < 0 or (setting == 0) is not (level is ThinkingLevel.OFF)
            ):
                raise ValueError("a level's budget is more than 0 tokens, and that of off is 0")
        return value

    @model_validator(mode="after")
    def _output_fits(self) -> Self:
        if self.max_output > self.context_window:
            raise ValueError("max_output is more than context_window")
        return self

    @cached_property
    def prices(self) -> Prices:
        """Return the model's prices."""
        read, write = self.cache_read_micros_per_million_tokens, self.cache_write_micros_per_million_tokens
        plain = self.input_micros_per_million_tokens
        return Prices(
            input=plain,
            output=self.output_micros_per_million_tokens,
            cache_read=plain if read is None else read,
            cache_write=plain if write is None else write,
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """Return the capabilities of the model that a request may need."""
        has = {Capability.IMAGES: self.vision, Capability.TOOLS: self.tools}
        return frozenset(capability for capability, present in has.items() if present)


class RouterConfig(_Strict):
    """The complete configuration. Every model name in it resolves."""

    primary: str
    fallbacks: tuple[str, ...] = ()
    """Candidates before the primary, for a request that names no fallbacks."""
    aliases: dict[str, str] = Field(default_factory=dict)
    providers: Annotated[dict[str, Provider], Field(min_length=1)]
    models: Annotated[dict[str, Model], Field(min_length=1)]
    blind_model_policy: BlindModelPolicy = BlindModelPolicy.STRIP
    """The handling of images at a model without `vision`."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """The currency of the prices and budgets, as a code of ISO 4217."""
    price_version: Annotated[str, Field(pattern=r"^[ -~]{0,64}$")] = ""
    """The operator's name of this version of the prices. Each usage names it beside its cost."""

    @field_validator("fallbacks", mode="before")
    @classmethod
    def _fallbacks_are_listed(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("providers")
    @classmethod
    def _names_are_plain(cls, value: dict[str, Provider]) -> dict[str, Provider]:
        if not all(map(_PROVIDER_NAME.fullmatch, value)):
            raise ValueError("a provider's name is made of lower-case letters, digits, '.', '_' and '-'")
        return value

    @model_validator(mode="after")
    def _names_resolve(self) -> Self:
        for name in self.models:
            ref = parse_ref(name, {})
            if ref is None or str(ref) != name or ref.provider not in self.providers:
                raise ValueError(
                    f"model {name!r} is not spelled provider/model with a provider that is listed"
                )
            self._check_api(name, self.models[name], self.providers[ref.provider].kind)
        named = [("primary", self.primary), *(("fallback", name) for name in self.fallbacks)]
        for what, name in (*named, *((f"alias {alias!r}", alias) for alias in self.aliases)):
            if self.resolve_model(name) is None:
                raise ValueError(f"{what} names no model that is listed")
        return self

    def _check_api(self, name: str, model: Model, kind: ProviderKind) -> None:
        if kind not in OPENAI_LIKE and model.api is not None:
            raise ValueError(
                f"model {name!r} has an api, but is not of an openai or openai_compatible provider"
            )
        if kind in OPENAI_LIKE and any(isinstance(setting, int) for setting in model.thinking.values()):
            raise ValueError(f"model {name!r} has a budget for thinking; its provider takes words")

    @cached_property
    def lowered_aliases(self) -> dict[str, str]:
        """Return the aliases with lower-case keys, as `parse_ref` expects them."""
        return {alias.strip().lower(): target for alias, target in self.aliases.items()}

    def resolve_model(self, name: str) -> ModelRef | None:
        """Return the listed model of a name or an alias; None if there is none."""
        ref = parse_ref(name, self.lowered_aliases)
        return ref if ref is not None and str(ref) in self.models else None
