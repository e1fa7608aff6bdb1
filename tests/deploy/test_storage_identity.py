"""S3 without keys: pods show STS a token of their own account, or ask the agent of a cloud."""

from pathlib import Path
from typing import Any

import pytest
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings

from tests.support.deploy.environment import variables
from tests.support.deploy.rendering import CI, Object, containers, of_kind, pods, refusal, text_of

IDENTITY = ("minimal", str(CI / "identity.yaml"))
USERS = {"Deployment/attachment-blob", "Deployment/attachment-blob-worker", "Pod/storage"}


def settings_in(container: Object, monkeypatch: pytest.MonkeyPatch) -> AttachmentBlobSettings:
    """Return the settings that the process reads, without the files of secrets."""
    for name, value in variables(container).items():
        monkeypatch.setenv(name, value)
    return AttachmentBlobSettings(database_url="postgresql://")


def projections(pod: Object) -> list[Any]:
    """Return the path of each token of the account that the pod has."""
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    return [
        (f"{mounts[volume['name']]}/{source['serviceAccountToken']['path']}", source["serviceAccountToken"])
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
        if "serviceAccountToken" in source
    ]


def test_pods_that_use_s3_have_a_token_where_the_process_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict(pods(*IDENTITY))
    assert {name for name, pod in found.items() if projections(pod)} == USERS
    for name in USERS:
        ((path, token),) = projections(found[name])
        read = settings_in(found[name]["containers"][0], monkeypatch)
        assert (read.s3_credentials, read.s3_web_identity_token_file) == ("web_identity", Path(path)), name
        assert read.s3_role_arn == "arn:aws:iam::123456789012:role/spawnmesh-blobs"
        assert (token["audience"], token["expirationSeconds"]) == ("sts.amazonaws.com", 3600)
        assert found[name]["automountServiceAccountToken"] is False, "it has no token for the cluster"
    assert found["Pod/storage"]["serviceAccountName"] == "attachment-blob"


def test_migration_reads_the_settings_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    (migrating,) = (
        one for one in containers(dict(pods(*IDENTITY))["Job/migrate"]) if one["name"] == "attachment-blob"
    )
    assert settings_in(migrating, monkeypatch).s3_credentials == "web_identity"


def test_no_pod_mounts_keys_that_it_does_not_use() -> None:
    assert "access-key" in text_of("minimal")
    assert "access-key" not in text_of(*IDENTITY)


def test_agent_of_the_cloud_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = tmp_path / "over.yaml"
    over.write_text('s3: {credentials: aws, existingSecret: ""}\n')
    read = settings_in(
        of_kind("Deployment", "minimal", str(over))["attachment-blob"]["spec"]["template"]["spec"][
            "containers"
        ][0],
        monkeypatch,
    )
    assert read.s3_credentials == "aws"
    agent = {"ipBlock": {"cidr": "169.254.170.23/32"}}
    reaching = {
        name
        for name, policy in of_kind("NetworkPolicy", "minimal", str(over)).items()
        if any(agent in rule.get("to", []) for rule in policy["spec"]["egress"])
    }
    assert reaching == {"attachment-blob", "attachment-blob-worker", "client"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"s3": {"existingSecret": ""}}, "/s3/existingSecret"),
        ({"s3": {"credentials": "aws"}}, "/s3/existingSecret"),
        ({"s3": {"credentials": "irsa"}}, "/s3/credentials"),
        ({"services": {"attachment-blob": {"settings": {"S3_CREDENTIALS": "aws"}}}}, "S3_CREDENTIALS"),
    ],
)
def test_credentials_that_contradict_each_other_are_refused(
    tmp_path: Path, values: Object, named: str
) -> None:
    assert named in refusal(tmp_path, values)
