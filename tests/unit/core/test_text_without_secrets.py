"""Text without secrets is kept as it is: source code, ids, cursors, hashes and images."""

import random
import re
import secrets
import string
import subprocess
from base64 import b64encode
from pathlib import Path

from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.secrets import mask_text

ROOT = Path(__file__).resolve().parents[3]


def corpus() -> list[str]:
    """Lines without secrets: the sources of this repository, and ids, cursors, hashes
    and images.
    """
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.pyi", "*.proto", "*.sql", "*.md", "*.toml", "*.json", "*.yaml", "Makefile"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    about_secrets = re.compile(r"secret|redact|mask|token|credential|_keys?\.|auth", re.IGNORECASE)
    lines = [
        line
        for name in listed.stdout.splitlines()
        if (ROOT / name).exists() and not about_secrets.search(name)
        for line in (ROOT / name).read_text().splitlines()
        if not re.search("FAKE|sesame", line)  # Planted by tests, to be found.
    ]
    words = "".join(random.Random(2).choices(string.ascii_lowercase, k=40))
    lines += [
        "aws_secret_access_key = os.environ['AWS_SECRET_ACCESS_KEY']",
        "aws_secret_access_key=read_the_secret_access_key_from_the_configuration()",
        "secretAccessKey: credentials.secretAccessKeyOfTheProfileThatIsUsed01.value,",
        'secret_key = "' + "x" * 40 + '"',
        f"AWS_SECRET_ACCESS_KEY={words}",
        f"secret_access_key: {words.upper()}",
        "secret key = da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "SecretAccessKey=<your secret access key of forty characters here>",
        'type SecretAccessKey = ReadonlySecretAccessKeyOfTheAccount["value"]',
        "a bearer SecurityContextHolderAwareRequestFilter",
        "Bearer realm-of-the-administrators is a challenge",
        "-----BEGIN PRIVATE KEY----- begins a key\nand considerable\nadministration follows it",
        "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
        "https://hooks.slack.com/services/T00000000/B00000000/xxxxxxxxxxxxxxxxxxxxxxxx",
        "https://hooks.slack.com/services/{team}/{channel}/{secret}",
        "https://api.slack.com/apps/A0A1B2C3D/incoming-webhooks",
        "https://api.telegram.org/bot<token>/sendMessage",
        "123456789:da39a3ee5e6b4b0d3255bfef95601890afd",
        f"1700000000:{'A' * 34}1",
        f"12345678:{words[:35]}",
        "20240101:ThisIsALongNameOfATestThatHasNoDigit",
        "2024-01-01T00:00:00.12345678:continues",
        "docker://alpine:3.19@sha256:c5b1261d6d3e43071626931fc004f70149baeba2c8ec672bd4f27761f8e1ad6b",
        "postgres://$DB_USER:$DB_PASSWORD@$DB_HOST:5432/main",
        "postgres://app:$DB_PASSWORD@db:5432/main",
        "amqp://$(USER):$(PASSWORD)@queue:5672",
        "mysql://app:${PASSWORD}@db/x?charset=utf8",
        "url = 'http://proxy:3128','me@example.com'",
        "'postgres://' + user + ':' + password + '@db'",
        "https://sk-shop-0123456789-abcdefghij.example.com:8443/x",
        "docs at https://user@example.com:8443/a, or ask me@example.com",
        "git clone ssh://git@github.com:acme/app.git && mail me@example.com",
    ]
    for _ in range(1_000):
        lines += [
            f"{secrets.randbelow(10**10):010}:{secrets.token_hex(20)}",
            f"{secrets.token_hex(4)}:{secrets.token_urlsafe(24)}",
            *(new_id(kind) for kind in IdKind),
            f"toolu_{secrets.token_urlsafe(18)}",
            f"call_{secrets.token_hex(12)}",
            f"chatcmpl-{secrets.token_urlsafe(22)}",
            f"msg_{secrets.token_hex(12)}|fc_{secrets.token_hex(24)}",
            f"cursor={secrets.token_urlsafe(48)}",
            secrets.token_hex(32),
            b64encode(secrets.token_bytes(300)).decode(),
        ]
    return lines


def test_source_code_and_ids_are_hardly_ever_mangled() -> None:
    """At most one line in twenty thousand changes."""
    lines = corpus()
    assert len(lines) > 80_000
    mangled = [line for line in lines if mask_text(line) != line]
    assert len(mangled) <= len(lines) // 20_000, mangled
