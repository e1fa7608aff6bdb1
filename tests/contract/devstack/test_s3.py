"""The embedded S3 server: credentials for one bucket open that bucket only, and data outlive a restart."""

import io
import json
import socket
import stat

import pytest
import urllib3
from minio import Minio
from minio.credentials import AssumeRoleProvider
from minio.error import S3Error
from spawnmesh_devstack.failures import PortBusy
from spawnmesh_devstack.ports import LOOPBACK, PAIR_DISTANCE, free_port_pairs
from spawnmesh_devstack.s3 import S3Server
from spawnmesh_devstack.watchdog import Watchdog


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("s3") / "data"


@pytest.fixture(scope="module")
def watchdog():
    with Watchdog() as dog:
        yield dog


def server(data_dir, watchdog):
    return S3Server(data_dir, data_dir.parent / "log", watchdog, lambda line: None)


@pytest.fixture
def http():
    with urllib3.PoolManager(timeout=60, retries=False) as pool:
        yield pool


@pytest.fixture(scope="module")
async def s3(data_dir, watchdog):
    async with server(data_dir, watchdog) as running:
        yield running


def admin_of(endpoint, http):
    keys = {"access_key": endpoint.access_key, "secret_key": endpoint.secret_key}
    return Minio(endpoint.endpoint, **keys, secure=False, region=endpoint.region, http_client=http)


def scoped_to(bucket, endpoint, http):
    actions = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"]
    resources = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    statement = {"Effect": "Allow", "Action": actions, "Resource": resources}
    provider = AssumeRoleProvider(
        sts_endpoint=endpoint.sts_endpoint,
        access_key=endpoint.access_key,
        secret_key=endpoint.secret_key,
        policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
        role_arn=endpoint.role_arn,
        role_session_name="test",
        http_client=http,
    )
    return Minio(
        endpoint.endpoint, credentials=provider, secure=False, region=endpoint.region, http_client=http
    )


def put(client, bucket, name, content):
    client.put_object(bucket, name, io.BytesIO(content), len(content))


def get(client, bucket, name):
    with client.get_object(bucket, name) as response:
        return response.read()


async def test_scoped_credentials_open_their_bucket_and_no_other(s3, http):
    admin = admin_of(s3.endpoint, http)
    for bucket in ("tenant-a", "tenant-b"):
        admin.make_bucket(bucket)
    put(admin, "tenant-b", "theirs", b"secret")

    client = scoped_to("tenant-a", s3.endpoint, http)

    put(client, "tenant-a", "mine", b"bytes")
    assert get(client, "tenant-a", "mine") == b"bytes"
    assert [found.object_name for found in client.list_objects("tenant-a")] == ["mine"]
    client.remove_object("tenant-a", "mine")
    for attempt in (
        lambda: get(client, "tenant-b", "theirs"),
        lambda: put(client, "tenant-b", "planted", b"x"),
        lambda: client.remove_object("tenant-b", "theirs"),
        lambda: list(client.list_objects("tenant-b")),
        lambda: client.make_bucket("tenant-c"),
    ):
        with pytest.raises(S3Error) as refused:
            attempt()
        assert refused.value.code == "AccessDenied"
    assert [found.object_name for found in admin.list_objects("tenant-b")] == ["theirs"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_the_store_behind_S3_is_closed(s3, http, method):
    admin_of(s3.endpoint, http).make_bucket(bucket := f"closed-{method.lower()}")
    address = f"http://{LOOPBACK}:{s3._filer_port}/buckets/{bucket}/planted"
    assert http.request(method, address, body=b"x" if method == "PUT" else None).status == 401


@pytest.mark.parametrize("distance", [0, PAIR_DISTANCE])
async def test_a_busy_port_is_told_before_anything_starts(tmp_path, watchdog, distance):
    (port,) = free_port_pairs(1)
    refused = S3Server(tmp_path / "data", tmp_path / "log", watchdog, lambda line: None, s3_port=port)

    with (
        socket.create_server((LOOPBACK, port + distance)),
        pytest.raises(PortBusy, match=f"port {port + distance}"),
    ):
        await refused.start()

    assert refused.processes == ()


async def test_the_files_that_hold_keys_are_for_the_owner_only(s3, data_dir):
    assert {stat.S_IMODE((data_dir / name).stat().st_mode) for name in ("s3.json", "iam.json")} == {0o600}


async def test_buckets_and_keys_outlive_a_stop_and_a_start_elsewhere(tmp_path, watchdog, http):
    data_dir = tmp_path / "data"
    async with server(data_dir, watchdog) as first:
        put_into = admin_of(first.endpoint, http)
        put_into.make_bucket("kept")
        put(put_into, "kept", "old", b"1")

    async with server(data_dir, watchdog) as second:
        client = admin_of(second.endpoint, http)
        put(client, "kept", "new", b"2")
        assert [get(client, "kept", name) for name in ("old", "new")] == [b"1", b"2"]
        assert second.endpoint.secret_key == first.endpoint.secret_key
        assert second.endpoint.endpoint != first.endpoint.endpoint
