"""Which certificates of providers are trusted."""

import ssl
from functools import cache

import httpx2


@cache
def trust_store() -> ssl.SSLContext:
    """Return the context that trusts the certificate authorities of the system.

    `SSL_CERT_FILE` and `SSL_CERT_DIR` name others. All providers share the context: reading the
    authorities takes about 50 ms, and an SDK's client would do it for itself.
    """
    return httpx2.create_ssl_context()
