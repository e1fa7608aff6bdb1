"""The SDK's clients of one provider."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from spawnmesh_model_router.credentials import Credential

_MOST_CLIENTS = 32

ClientT = TypeVar("ClientT")


class Clients(Generic[ClientT]):
    """One client of a provider for each of its credentials in use. All share its connections, so that one can be dropped at any time."""

    def __init__(self, make: Callable[[str], ClientT]) -> None:
        self._make = make
        self._clients: OrderedDict[str, ClientT] = OrderedDict()

    def of(self, credential: Credential) -> ClientT:
        """The client that calls with this credential."""
        client = self._clients.pop(credential.fingerprint, None) or self._make(credential.secret)
        self._clients[credential.fingerprint] = client
        if len(self._clients) > _MOST_CLIENTS:
            self._clients.popitem(last=False)
        return client
