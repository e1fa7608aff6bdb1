"""Secure defaults of the chart, and the value that switches each one off."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.support.deploy.rendering import (
    CI,
    ROOT,
    VALUE_SETS,
    Object,
    containers,
    helm,
    of_kind,
    pods,
    text_of,
)

DATABASE_SERVICES = {"session", "attachment-blob", "transcript", "model-router", "hook"}
# The values that minimal.yaml must leave to the chart, so that the tests below see defaults.
LEFT_OUT = {"networkPolicy": None, "image": "tag", "postgresql": "sslMode", "tls": "mode", "s3": "secure"}


def values_of(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((CI / f"{name}.yaml").read_text())
    return read


def over(tmp_path: Path, values: Object) -> str:
    """Write values that are merged over a set."""
    file = tmp_path / "over.yaml"
    file.write_text(yaml.safe_dump(values))
    return str(file)


def variables(container: Object) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}


def database_containers(*values: str) -> Iterator[tuple[str, Object]]:
    """Yield every container of the mesh that is given URLs of PostgreSQL."""
    for name, pod in pods(*values):
        holding = {
            volume["name"]
            for volume in pod["volumes"]
            if "-url" in str(volume.get("projected")) or "postgresql" in str(volume.get("secret"))
        } - {"postgresql-ca", "password"}
        for container in containers(pod):
            if holding & {mount["name"] for mount in container["volumeMounts"]}:
                yield f"{name}/{container['name']}", container


def test_minimal_values_leave_the_defaults_to_the_chart() -> None:
    minimal = values_of("minimal")
    for section, key in LEFT_OUT.items():
        assert section not in minimal if key is None else key not in minimal[section]


def test_connections_between_services_have_certificates() -> None:
    deployments, certificates = of_kind("Deployment", "minimal"), of_kind("Certificate", "minimal")
    for name, deployment in deployments.items():
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        files = {key.partition("_TLS_")[2] for key in variables(container) if "_TLS_" in key}
        assert files == {"CERT_FILE", "KEY_FILE", "CA_FILE"}, name
        (secret,) = [volume["secret"]["secretName"] for volume in pod["volumes"] if volume["name"] == "tls"]
        assert secret in {one["spec"]["secretName"] for one in certificates.values()}, name


def test_network_policies_are_on() -> None:
    for values in VALUE_SETS:
        assert {*of_kind("Deployment", values), "migrate", "client"} <= set(of_kind("NetworkPolicy", values))


def test_every_connection_to_postgresql_verifies_the_server(tmp_path: Path) -> None:
    found = dict(database_containers("minimal", over(tmp_path, {"postgresql": {"prepare": True}})))
    jobs = {name.partition("/")[2] for name in found if name.startswith("Job/")}
    assert jobs == {f"migrate/{one}" for one in (*DATABASE_SERVICES, "prepare")}
    assert len([name for name in found if name.startswith("Deployment/")]) == 9
    for name, container in found.items():
        told = variables(container)
        assert told["PGSSLMODE"] == "verify-full", name
        assert told["PGSSLROOTCERT"] == "/etc/ssl/certs/ca-certificates.crt", name


def test_authority_of_postgresql_is_mounted_where_it_is_looked_for() -> None:
    for name, container in database_containers("production"):
        if name != "Pod/storage/storage":  # It has the variables of its service, and no connection.
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert str(Path(variables(container)["PGSSLROOTCERT"]).parent) in mounted, name


@pytest.mark.parametrize(
    ("ssl_mode", "authorities"), [("verify-ca", True), ("require", False), ("disable", False)]
)
def test_less_than_verified_is_named(tmp_path: Path, ssl_mode: str, authorities: bool) -> None:
    values = over(tmp_path, {"postgresql": {"sslMode": ssl_mode}})
    for name, container in database_containers("minimal", values):
        told = variables(container)
        # With authorities, libpq would verify a server for `require` too.
        assert (told["PGSSLMODE"], "PGSSLROOTCERT" in told) == (ssl_mode, authorities), name


async def test_rendered_variables_refuse_a_server_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer_in_plain_text(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)  # The request for TLS.
        writer.write(b"N")
        await reader.read()
        writer.close()

    (container,) = of_kind("Deployment", "minimal")["session"]["spec"]["template"]["spec"]["containers"]
    for name, value in variables(container).items():
        if name.startswith("PG"):
            monkeypatch.setenv(name, value)
    async with await asyncio.start_server(answer_in_plain_text, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(psycopg.OperationalError, match="does not support SSL, but SSL was required"):
            await psycopg.AsyncConnection.connect(f"postgresql://session:x@127.0.0.1:{port}/spawnmesh")


@pytest.mark.parametrize("values", VALUE_SETS)
def test_pods_get_the_private_key_of_their_service_and_none_that_signs_for_operators(values: str) -> None:
    held = {}
    for name, pod in pods(values):
        for volume in pod["volumes"]:
            secret = volume.get("secret", {})
            if secret.get("secretName") == "spawnmesh-tokens":
                held[name] = {item["key"] for item in secret["items"]}
    deployments = of_kind("Deployment", values)
    assert held == {
        f"Deployment/{name}": {f"{name.removesuffix('-worker')}.pem", "jwks.json"} for name in deployments
    }
    assert "client.pem" not in text_of(values)


def test_helm_test_has_a_token_and_no_key() -> None:
    (container,) = of_kind("Pod", "minimal")["doctor"]["spec"]["containers"]
    (token,) = [one for one in container["env"] if "valueFrom" in one]
    wanted = {"name": "spawnmesh-test-token", "key": "token", "optional": True}
    assert token == {"name": "SPAWNMESH_TOKEN", "valueFrom": {"secretKeyRef": wanted}}
    assert not any("SIGNING_KEY" in one["name"] for one in container["env"])


def test_images_of_a_release_are_named_by_their_digests() -> None:
    digests = values_of("production")["image"]["digests"]
    for name, pod in pods("production"):
        for container in containers(pod):
            repository, _, digest = container["image"].partition("@")
            assert digest == digests[repository.rpartition("/")[2]], name


@pytest.mark.parametrize(
    ("base", "section", "said"),
    [
        ("minimal", "image", "image.digests is empty: name the digests of all images"),
        ("trial", "image", "image.digests is empty: name the digests of all images"),
        (
            "trial",
            "postgresql",
            "postgresql.bundled.image has no digest: name that of docker.io/library/postgres",
        ),
        ("trial", "s3", "s3.bundled.image has no digest: name that of docker.io/chrislusf/seaweedfs"),
    ],
)
def test_images_without_digests_are_refused_unless_a_tag_is_named(
    tmp_path: Path, base: str, section: str, said: str
) -> None:
    values = values_of(base)
    named = values if section == "image" else values[section]["bundled"]
    del named["image"]
    done = helm(over(tmp_path, values))
    assert done.returncode == 1
    assert said in done.stderr
    named["image"] = {"tag": "7.8.9"}
    images = [one["image"] for _, pod in pods(over(tmp_path, values)) for one in containers(pod)]
    by_tag = [image for image in images if image.endswith(":7.8.9")]
    assert len(by_tag) == (
        len([one for one in images if one.startswith("spawnmesh/")]) if named is values else 1
    )


def test_digests_of_some_images_alone_are_refused(tmp_path: Path) -> None:
    values = values_of("minimal")
    del values["image"]["digests"]["command"]
    done = helm(over(tmp_path, values))
    assert done.returncode == 1
    assert "/image/digests" in done.stderr


def test_digest_of_a_bundled_server_goes_before_its_tag(tmp_path: Path) -> None:
    digest = f"sha256:{64 * 'a'}"
    bundled = {"bundled": {"image": {"digest": digest}}}
    values = over(tmp_path, {"postgresql": bundled, "s3": bundled})
    images = {name: containers(pod)[0]["image"] for name, pod in pods("trial", values)}
    assert images["StatefulSet/postgresql"] == f"docker.io/library/postgres@{digest}"
    assert images["StatefulSet/s3"] == f"docker.io/chrislusf/seaweedfs@{digest}"


def test_notes_say_where_images_are_named_by_tag() -> None:
    told = {
        values: "not by digest" in helm("--notes", str(CI / f"{values}.yaml")).stdout for values in VALUE_SETS
    }
    assert told == {"minimal": False, "trial": True, "production": False}


def test_what_is_on_by_default_is_listed_with_what_switches_it_off() -> None:
    page = (ROOT / "docs" / "howto" / "install-on-kubernetes.md").read_text()
    listed = page.partition("### What is on by default")[2].partition("\n## ")[0]
    rows = dict(row.strip("| ").split(" | ") for row in listed.splitlines() if row.startswith("| "))
    (images,) = [off for on, off in rows.items() if on.startswith("images by digest")]
    assert "`image.tag`" in images
    (policies,) = [on for on in rows if on.startswith("network policies")]
    assert "private addresses" in policies


def test_trial_switches_off_tls_by_its_name_and_nothing_else() -> None:
    trial = values_of("trial")
    assert trial["tls"] == {"mode": "none"}
    assert "networkPolicy" not in trial
    assert of_kind("Certificate", "trial") == {}
    for name, container in database_containers("trial"):
        assert variables(container)["PGSSLMODE"] == "disable", name
