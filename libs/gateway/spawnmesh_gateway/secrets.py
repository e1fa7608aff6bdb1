"""Certificates and authorities. Envoy reads the files again when they change."""

from spawnmesh_gateway.settings import GatewaySettings, Tls
from spawnmesh_gateway.typed import Json, typed

_TLS = "envoy.extensions.transport_sockets.tls.v3"
_OWN, _PEERS, _SHOWN = "own", "peers", "shown"


def secrets(settings: GatewaySettings) -> dict[str, Json]:
    """Return a document for each secret, by the name of its file. It names the files of PEM, which
    Envoy watches for changes.
    """
    found: dict[str, Json] = {}
    if settings.upstream_tls is not None:
        found[_OWN] = _certificate(_OWN, settings.upstream_tls)
        found[_PEERS] = _authority(_PEERS, settings.upstream_tls)
    if settings.downstream_tls is not None:
        found[_SHOWN] = _certificate(_SHOWN, settings.downstream_tls)
    return {_file_of(name): {"resources": [secret]} for name, secret in found.items()}


def upstream_tls_context(settings: GatewaySettings, host: str) -> Json:
    """Return the context of connections to a service whose certificate has this name."""
    name: Json = {"san_type": "DNS", "matcher": {"exact": host}}
    return typed(
        f"{_TLS}.UpstreamTlsContext",
        sni=host,
        common_tls_context={
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            # Health checks offer no protocol of their own, and gRPC accepts nothing else.
            "alpn_protocols": ["h2"],
            "tls_certificate_sds_secret_configs": [_reference(_OWN, settings)],
            "combined_validation_context": {
                "default_validation_context": {"match_typed_subject_alt_names": [name]},
                "validation_context_sds_secret_config": _reference(_PEERS, settings),
            },
        },
    )


def downstream_tls_context(settings: GatewaySettings) -> Json:
    """Return the context of connections of clients."""
    return typed(
        f"{_TLS}.DownstreamTlsContext",
        common_tls_context={
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_certificate_sds_secret_configs": [_reference(_SHOWN, settings)],
        },
    )


def _reference(name: str, settings: GatewaySettings) -> Json:
    file = settings.folder / _file_of(name)
    source = {"path_config_source": {"path": str(file)}, "resource_api_version": "V3"}
    return {"name": name, "sds_config": source}


def _file_of(name: str) -> str:
    return f"secret-{name}.json"


def _certificate(name: str, files: Tls) -> Json:
    return typed(
        f"{_TLS}.Secret",
        name=name,
        tls_certificate={
            "certificate_chain": {"filename": str(files.certificate)},
            "private_key": {"filename": str(files.key)},
            "watched_directory": {"path": str(files.certificate.parent)},
        },
    )


def _authority(name: str, files: Tls) -> Json:
    return typed(
        f"{_TLS}.Secret",
        name=name,
        validation_context={
            "trusted_ca": {"filename": str(files.authority)},
            "watched_directory": {"path": str(files.authority.parent)},
        },
    )
