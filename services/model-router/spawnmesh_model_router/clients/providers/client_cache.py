"""The SDK clients of one provider."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from spawnmesh_model_router.clients.credentials import Credential

_MAX_CLIENTS = 32

ClientT = TypeVar("ClientT")


class ClientCache(Generic[ClientT]):
    """The client of each credential in use.

    All clients share the provider's connections, so the cache may drop one at any time.
    """

    def __init__(self, make: Callable[[str], ClientT]) -> None:
        self._make = make
        self._clients: OrderedDict[str, ClientT] = OrderedDict()

    def get(self, credential: Credential) -> ClientT:
        """Return the client with this credential."""
        client = self._clients.pop(credential.fingerprint, None) or self._make(credential.secret)
        self._clients[credential.fingerprint] = client
        if len(self._clients) > _MAX_CLIENTS:
            self._clients.popitem(last=False)
        return client
