"""Certificates and authorities. Envoy reads the files again when they change."""

from spawnmesh_gateway.settings import GatewaySettings, Tls
from spawnmesh_gateway.typed import Json, typed

SECRETS_FILE = "secrets.json"
_TLS = "envoy.extensions.transport_sockets.tls.v3"
_OWN, _PEERS, _SHOWN = "own", "peers", "shown"


def secrets(settings: GatewaySettings) -> Json:
    """Return the document that names the files, which Envoy watches for changes."""
    resources: list[Json] = []
    if settings.upstream_tls is not None:
        resources += [_certificate(_OWN, settings.upstream_tls), _authority(_PEERS, settings.upstream_tls)]
    if settings.downstream_tls is not None:
        resources.append(_certificate(_SHOWN, settings.downstream_tls))
    return {"resources": resources}


def upstream_tls_context(settings: GatewaySettings, host: str) -> Json:
    """Return the context of connections to a service whose certificate has this name."""
    name: Json = {"san_type": "DNS", "matcher": {"exact": host}}
    return typed(
        f"{_TLS}.UpstreamTlsContext",
        sni=host,
        common_tls_context={
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
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
    file = settings.folder / SECRETS_FILE
    source = {"path_config_source": {"path": str(file)}, "resource_api_version": "V3"}
    return {"name": name, "sds_config": source}


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
