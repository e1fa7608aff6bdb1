"""The trust in providers' certificates."""

import ssl
from contextlib import aclosing
from typing import Any, cast

import pytest
from spawnmesh_model_router.clients.credentials import Credential
from spawnmesh_model_router.clients.providers.tls import trust_store
from spawnmesh_model_router.clients.providers.upstream import open_upstreams
from spawnmesh_model_router.domain.answer import StreamTimeouts
from spawnmesh_model_router.domain.router_config import Model, Provider, ProviderKind

from tests.support.model_router.requests import make_request, text, user


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
async def test_a_client_does_not_read_the_certificate_authorities_again(
    kind: ProviderKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust_store()
    reads: list[object] = []
    for name in ("load_verify_locations", "load_default_certs", "set_default_verify_paths"):
        monkeypatch.setattr(ssl.SSLContext, name, lambda *_: reads.append(1))
    provider = Provider.model_validate({"kind": kind, "credentials": ["env:KEY"]})
    model = Model(context_window=1000, max_output=100)
    async with open_upstreams({"p": provider}, 1.0) as upstreams:
        for key in ("first", "second"):
            request = make_request(user(text("hi")))
            credential = Credential(key, key)
            pieces = upstreams["p"].stream(request, "m", model, credential, StreamTimeouts(1.0, 1.0))
            async with aclosing(cast(Any, pieces)):  # The client exists. Nothing is sent.
                pass
    assert reads == []
