"""Helm refuses wrong values, with a message that names the value."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy.rendering import Object, refusal


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replicas": 3}, "replicas"),
        ({"services": {"sesion": {"replicas": 3}}}, "sesion"),
        ({"services": {"session": {"replicas": 0}}}, "/services/session/replicas"),
        ({"services": {"session": {"replicas": "3"}}}, "/services/session/replicas"),
        ({"services": {"session": {"resources": {"limits": {"memory": "lots"}}}}}, "/services/session/resources"),
        ({"services": {"runner": {"connections": 4}}}, "connections"),
        ({"services": {"session": {"settings": {"DATABASE_URL": "postgresql://x"}}}}, "DATABASE_URL"),
        ({"services": {"attachment-blob": {"settings": {"S3_SECRET_KEY": "x"}}}}, "S3_SECRET_KEY"),
        ({"services": {"session": {"settings": {"lease_ttl": 3}}}}, "lease_ttl"),
        ({"services": {"session": {"settings": {"LEASE_TTL": 3}}}}, "LEASE_TTL"),
        ({"services": {"session": {"settings": {"LEASE_TTL_SECONDS": "abc"}}}}, "/services/session/settings/LEASE_TTL_SECONDS"),
        ({"services": {"session-worker": {"settings": {"LEASE_TTL_SECONDS": 0}}}}, "/services/session-worker/settings/LEASE_TTL_SECONDS"),
        ({"services": {"runner": {"settings": {"MAX_RUNS": 65}}}}, "/services/runner/settings/MAX_RUNS"),
        ({"services": {"runner": {"settings": {"MAX_RUNS": 2.5}}}}, "/services/runner/settings/MAX_RUNS"),
        ({"services": {"hook": {"settings": {"ALLOW_PRIVATE_ENDPOINTS": "yes"}}}}, "/services/hook/settings/ALLOW_PRIVATE_ENDPOINTS"),
        ({"services": {"attachment-blob": {"settings": {"S3_ENCRYPTION": "aes"}}}}, "/services/attachment-blob/settings/S3_ENCRYPTION"),
        ({"services": {"hook-worker": {"settings": {"MAX_RUNS": 3}}}}, "MAX_RUNS"),
        ({"services": {"runner": {"settings": {"LEASE_TTL_SECONDS": 3}}}}, "LEASE_TTL_SECONDS"),
        (
            {"services": {"hook": {"autoscaling": {"enabled": True, "minReplicas": 9}}}},
            "services.hook.autoscaling.minReplicas is 9, above maxReplicas, which is 6",
        ),
        ({"image": {"tag": "latest"}}, "/image/tag"),
        ({"image": {"digests": {"session": "latest"}}}, "/image/digests/session"),
        ({"image": {"digests": {"sesion": "sha256:" + 64 * "0"}}}, "sesion"),
        ({"postgresql": {"sslMode": "prefer"}}, "/postgresql/sslMode"),
        ({"postgresql": {"bundled": {"image": {"tag": "latest"}}}}, "/postgresql/bundled/image/tag"),
        ({"s3": {"bundled": {"image": {"tag": "latest"}}}}, "/s3/bundled/image/tag"),
        ({"s3": {"bundled": {"image": {"digest": "4.48"}}}}, "/s3/bundled/image/digest"),
        ({"tokens": {"clientIssuers": ["client", "session"]}}, "/tokens/clientIssuers/1"),
        ({"tokens": {"testSecret": ""}}, "/tokens/testSecret"),
        ({"tokens": {"jwksUrl": "http://keys.example.com/jwks.json"}}, "/tokens/jwksUrl"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"logLevel": "verbose"}, "/logLevel"),
        ({"tokens": {"existingSecret": ""}}, "/tokens/existingSecret"),
        ({"postgresql": {"existingSecret": ""}}, "/postgresql/existingSecret"),
        ({"postgresql": {"existingSecret": "Not_A_Name"}}, "/postgresql/existingSecret"),
        ({"postgresql": {"citus": True}}, "/postgresql/prepare"),
        ({"s3": {"endpoint": "https://s3.example.com"}}, "/s3/endpoint"),
        ({"s3": {"stsRoleArn": ""}}, "/s3/stsRoleArn"),
        ({"s3": {"stsEndpoint": "http://sts.storage/"}}, "/s3/stsEndpoint"),
        ({"tls": {"mode": "mutual"}}, "/tls/mode"),
        ({"tls": {"mode": "secret"}}, "/tls/existingSecret"),
        ({"tls": {"issuerRef": {"name": ""}}}, "/tls/issuerRef"),
        ({"telemetry": {"otlpEndpoint": "collector:4317"}}, "/telemetry/otlpEndpoint"),
        ({"telemetry": {"metrics": {"serviceMonitor": True}}}, "telemetry.metrics.enabled"),
        ({"telemetry": {"otlpEndpoint": "http://collector"}}, "/telemetry/otlpEndpoint"),
        (
            {"telemetry": {"otlpEndpoint": "http://collector:14317"}},
            "telemetry.otlpEndpoint is on port 14317, and networkPolicy.otlp.ports lets through [4317] alone",
        ),
        (
            {"s3": {"endpoint": "s3.storage:9000"}},
            "s3.endpoint is on port 9000, and networkPolicy.s3.ports lets through [443] alone",
        ),
        (
            {"s3": {"secure": False, "endpoint": "s3.storage:443", "stsEndpoint": "http://sts.storage/"}},
            "s3.stsEndpoint is on port 80, and networkPolicy.s3.ports lets through [443] alone",
        ),
        (
            {"tokens": {"jwksUrl": "https://[fd00::1]:8443/keys"}},
            "tokens.jwksUrl is on port 8443, and networkPolicy.jwks.ports lets through [443] alone",
        ),
        (
            {
                "hook": {"bundledPlugins": [{"name": "gate", "endpoint": "grpc://gate:7000", "hooks": ["BEFORE_SPAWN"]}]},
            },
            "endpoint of the bundled plugin gate is on port 7000, and networkPolicy.plugins.ports lets through [443] alone",
        ),
        (
            {"modelRouter": {"config": {"providers": {"openai": {"base_url": "http://models:8000/v1"}}}}},
            "modelRouter.config.providers.openai.base_url is on port 8000, and networkPolicy.providers.ports lets through [443] alone",
        ),
        ({"networkPolicy": {"clients": [{}]}}, "/networkPolicy/clients"),
        ({"networkPolicy": {"dns": {"to": [{"ipBlock": {"cidr": "10.96.0.10"}}]}}}, "/networkPolicy/dns/to"),
        ({"networkPolicy": {"clients": [{"podSelector": {"matchLabel": {"a": "b"}}}]}}, "matchLabel"),
        ({"networkPolicy": {"s3": {"to": [{"ipBlock": {"cidr": "10.0.0.1"}}]}}}, "cidr"),
        ({"networkPolicy": {"postgresql": {"to": []}}}, "/networkPolicy/postgresql/to"),
        ({"networkPolicy": {"mcp": {"to": []}}}, "/networkPolicy/mcp/to"),
        ({"networkPolicy": None}, "missing property 'networkPolicy'"),
        ({"pod": {"tolerations": [{"efect": "NoSchedule"}]}}, "efect"),
        ({"logLevel": None}, "logLevel"),
        ({"modelRouter": {"config": {"providers": {"openai": {"kind": "openai", "credentials": ["sk-1"]}}}}}, "credentials"),
        ({"modelRouter": {"config": {"providers": {"openai": {"api_key": "sk-1"}}}}}, "api_key"),
        ({"modelRouter": {"config": {"providers": {"openai": {"kind": "scripted"}}}}}, "/providers/openai/kind"),
        ({"modelRouter": {"config": {"models": {"openai/gpt-4.1-mini": {"vison": True}}}}}, "vison"),
        ({"modelRouter": {"config": {"fallback": []}}}, "fallback"),
        ({"hook": {"bundledPlugins": [{"name": "a", "endpoint": "grpc://a:1", "hooks": ["STOP"]}]}}, "/bundledPlugins/0/hooks"),
        ({"services": {"hook": {"settings": {"BUNDLED_PLUGINS_FILE": "/x"}}}}, "BUNDLED_PLUGINS_FILE"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_wrong_value_is_refused_and_named(tmp_path: Path, values: Object, named: str) -> None:
    assert named in refusal(tmp_path, values)


@pytest.mark.parametrize(
    "values",
    [
        {"postgresql": {"bundled": {"password": ""}}},
        {"postgresql": {"bundled": {"password": "short"}}},
        {"postgresql": {"bundled": {"password": "not@in a:url/"}}},
        {"s3": {"bundled": {"secretKey": ""}}},
        {"postgresql": {"existingSecret": "another"}},
    ],
)
def test_trial_needs_secrets_of_its_own_and_no_others(tmp_path: Path, values: Any) -> None:
    (section,) = values
    assert f"/{section}" in refusal(tmp_path, values, base="trial")
