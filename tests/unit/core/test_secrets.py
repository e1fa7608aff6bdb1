"""Secrets are masked, and texts that only look like secrets are not."""

import json
import random
import string
from base64 import b64encode, urlsafe_b64encode

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from spawnmesh_core.json_text import TooManyNodes
from spawnmesh_core.secret_forms import Secret, marker
from spawnmesh_core.secrets import mask_document, mask_text

WORDS = string.ascii_letters + string.digits


def drawn(length: int, alphabet: str = WORDS) -> str:
    return "".join(random.Random(f"{length}{alphabet}").choices(alphabet, k=length))


def token() -> str:
    def part(text: str) -> str:
        return urlsafe_b64encode(text.encode()).decode().rstrip("=")

    return f"{part(json.dumps({'alg': 'EdDSA', 'typ': 'JWT'}))}.{part(json.dumps({'sub': 'someone', 'exp': 1}))}.{drawn(86)}"


def private_key(*, traditional: bool = False) -> str:
    made = rsa.generate_private_key(65537, 1024) if traditional else ec.generate_private_key(ec.SECP256R1())
    form = (
        serialization.PrivateFormat.TraditionalOpenSSL if traditional else serialization.PrivateFormat.PKCS8
    )
    return made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


KEYS = {
    "anthropic": f"sk-ant-api03-{drawn(93)}AA",
    "openai": f"sk-{drawn(48)}",
    "openai project": f"sk-proj-{drawn(60)}",
    "openrouter": f"sk-or-v1-{drawn(64, '0123456789abcdef')}",
    "google": f"AIza{drawn(35)}",
    "aws": f"AKIA{drawn(16, string.ascii_uppercase + string.digits)}",
    "github": f"ghp_{drawn(36)}",
    "github fine-grained": f"github_pat_{drawn(82)}",
    "gitlab": f"glpat-{drawn(20)}",
    "slack": f"xoxb-1234567890-{drawn(24)}",
    "hugging face": f"hf_{drawn(34)}",
    "groq": f"gsk_{drawn(52)}",
    "xai": f"xai-{drawn(80)}",
    "stripe": f"sk_live_{drawn(24)}",
    "npm": f"npm_{drawn(36)}",
    "sendgrid": f"SG.{drawn(22)}.{drawn(43)}",
    "elevenlabs": f"sk_{drawn(48, '0123456789abcdef')}",
    "cerebras": f"csk-{drawn(48)}",
    "tavily": f"tvly-dev-{drawn(32)}",
    "jina": f"jina_{drawn(60)}",
    "fireworks": f"fw_{drawn(24)}",
    "google client": f"GOCSPX-{drawn(28)}",
    "bedrock": f"ABSK{drawn(120)}",
    "vault": f"hvs.{drawn(90)}",
    "databricks": f"dapi{drawn(32, '0123456789abcdef')}",
    "webhook": f"whsec_{drawn(32)}",
    "telegram": f"1234567890:AA{drawn(33)}",
    "telegram, of any letters": f"12345678:{drawn(35)}",
}
AWS_WITH_FEW_DIGITS = "wJalrXUtnFEMIxMDENGxbPxRfiCYabcdefKEYZz7"
SLACK_SECRET = drawn(24)
AROUND = [
    "{}",
    "key is {}, really",
    "export KEY={}\nnext",
    'curl -H "x-api-key: {}" https://a.example',
    "[{}]",
    "`{}`.",
    "one\\n{}\\ntwo",
    "\x1b[1;32m{}\x1b[0m",
]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", list(KEYS))
def test_provider_keys_go(name: str, around: str) -> None:
    assert mask_text(around.format(KEYS[name])) == around.format(marker(Secret.PROVIDER_KEY))


@pytest.mark.parametrize(
    ("text", "secret", "kind"),
    [
        ("Authorization: Bearer {}", drawn(40), Secret.BEARER_TOKEN),
        ("curl -H 'Authorization: Bearer {}' x", "abcdefghijklmnopqrst", Secret.BEARER_TOKEN),
        ("Bearer {} is the token", "kQzJhWvXbTgRfDsLpYmNcAeU", Secret.BEARER_TOKEN),
        ("authorization: bearer {}\r\nHost: a", drawn(20) + "==", Secret.BEARER_TOKEN),
        ('{{"auth": "{}"}}', token(), Secret.BEARER_TOKEN),
        ("cookie: session={}; path=/", token(), Secret.BEARER_TOKEN),
        ("Authorization: Basic {}", b64encode(b"me:hunter2").decode(), Secret.BEARER_TOKEN),
        ("postgresql://app:{}@db.example:5432/main", "hunter2", Secret.URL_CREDENTIALS),
        ("git clone https://me:{}@git.example/x.git", "p%40ss-w0rd!", Secret.URL_CREDENTIALS),
        ("redis://:{}@cache:6379/0", "s3cr3t", Secret.URL_CREDENTIALS),
        ('{{"dsn":"postgres:\\/\\/u:{}@db\\/x"}}', "hunter2pass", Secret.URL_CREDENTIALS),
        ("redis://:{}@cache:6379/0", "s3cr3t@home@work", Secret.URL_CREDENTIALS),
        ("psql 'postgres://app:{}@db/x'", "S3cr3t$Pass9", Secret.URL_CREDENTIALS),
        ("psql postgres://app:{}@db/x", "it's-S3cr3t", Secret.URL_CREDENTIALS),
        ("curl smtp://me@acme.example:{}@smtp.acme.example", "S3cretPass9", Secret.URL_CREDENTIALS),
        ('"https:/\\/u:{}@host"', "p4ssw0rd", Secret.URL_CREDENTIALS),
        ('"https:\\//u:{}@host"', "p4ssw0rd", Secret.URL_CREDENTIALS),
        ("git clone https://{}@github.com/acme/app.git", KEYS["github"], Secret.PROVIDER_KEY),
        (
            "pip install git+https://{}@github.com/acme/app.git",
            KEYS["github fine-grained"],
            Secret.PROVIDER_KEY,
        ),
        ('"https:\\/\\/{}@gitlab.com\\/x"', KEYS["gitlab"], Secret.PROVIDER_KEY),
        ("aws_secret_access_key = {}", drawn(36) + "/+/7", Secret.PROVIDER_KEY),
        ("aws_secret_access_key = {}", AWS_WITH_FEW_DIGITS, Secret.PROVIDER_KEY),
        ("export AWS_SECRET_ACCESS_KEY={}\n", AWS_WITH_FEW_DIGITS, Secret.PROVIDER_KEY),
        ('{{"SecretAccessKey": "{}", "Expiration": 1}}', AWS_WITH_FEW_DIGITS, Secret.PROVIDER_KEY),
        ('\\"secretAccessKey\\":\\"{}\\"', AWS_WITH_FEW_DIGITS, Secret.PROVIDER_KEY),
        ("aws configure set aws_secret_access_key {} --profile a", AWS_WITH_FEW_DIGITS, Secret.PROVIDER_KEY),
        ("<SecretAccessKey>{}</SecretAccessKey>", AWS_WITH_FEW_DIGITS[:-1] + "/", Secret.PROVIDER_KEY),
        ("the secret access key is `{}`.", AWS_WITH_FEW_DIGITS, Secret.PROVIDER_KEY),
        ("aws_secret => '{}'", AWS_WITH_FEW_DIGITS, Secret.PROVIDER_KEY),
        (
            "curl -d @a https://hooks.slack.com/services/T0A1B2C3D/B0A1B2C3D4E/{} -v",
            SLACK_SECRET,
            Secret.URL_CREDENTIALS,
        ),
        (
            '"https:\\/\\/hooks.slack.com\\/services\\/T0A1B2C3D\\/B0A1B2C3D\\/{}"',
            SLACK_SECRET,
            Secret.URL_CREDENTIALS,
        ),
        (
            "https://hooks.slack.com/workflows/T0A1B2C3D/A0A1B2C3D/123456789012345678/{}",
            SLACK_SECRET,
            Secret.URL_CREDENTIALS,
        ),
        ("https://api.telegram.org/bot{}/sendMessage", KEYS["telegram"], Secret.PROVIDER_KEY),
        ('"api_key": "{}"', drawn(32, "0123456789abcdef"), Secret.PROVIDER_KEY),
    ],
)
def test_other_credentials_go_and_what_is_around_them_stays(text: str, secret: str, kind: Secret) -> None:
    assert mask_text(text.format(secret)) == text.format(marker(kind))


@pytest.mark.parametrize("traditional", [False, True])
def test_private_keys_go_in_every_spelling(traditional: bool) -> None:
    key = private_key(traditional=traditional)
    lines = [line for line in key.splitlines() if not line.startswith("-----")]
    for spelled in (
        key,
        key.replace("\n", "\r\n"),
        key.replace("\n", "\\n"),
        key[: len(key) // 2],
        f"before\n{key}behind",
        key.replace("\n", "\n    "),
        key.replace("\n", "\n> "),
        key.replace("\n", "\n# "),
        "\n".join(f"{number:>6}→{line}" for number, line in enumerate(key.splitlines(), 1)),
        "\n".join(f'  "{line}",' for line in key.splitlines()),
    ):
        masked = mask_text(spelled)
        assert marker(Secret.PRIVATE_KEY) in masked
        assert not any(line in masked for line in lines)
    assert mask_text(f"before\n{key}behind").startswith("before\n")
    assert mask_text(f"before\n{key}behind").endswith("behind")


@pytest.mark.parametrize("width", [12, 16, 32, 39])
def test_private_keys_with_short_lines_go(width: int) -> None:
    lines = [drawn(width) for _ in range(8)]
    key = "\n".join(("-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----", ""))
    for spelled in (key, key.replace("\n", "\r\n"), key.replace("\n", "\\n"), key.replace("\n", "\n> ")):
        masked = mask_text(f"before\n{spelled}behind")
        assert masked.startswith(f"before\n{marker(Secret.PRIVATE_KEY)}")
        assert not any(line in masked for line in lines)
    cut = mask_text(key[: len(key) * 2 // 3])
    assert not any(line in cut for line in lines)


def test_a_private_key_that_is_a_whole_value_goes_although_it_could_be_base64() -> None:
    lines = [drawn(64), drawn(63), drawn(62), drawn(61), drawn(60)]
    for armour in ("PRIVATE KEY", "RSA PRIVATE KEY"):
        key = "\n".join((f"-----BEGIN {armour}-----", *lines, f"-----END {armour}-----", ""))
        for value in (key, f"\n  {key}", key.replace("\n", " ")):
            masked = mask_document(json.dumps({"private_key": value}))
            assert marker(Secret.PRIVATE_KEY) in masked
            assert not any(line in masked for line in lines)


def test_a_key_between_many_plain_words_goes() -> None:
    words = "deploy it with the key that follows and do not tell anybody else " * 5
    text = json.dumps({"task": f"{words}{KEYS['anthropic']} {words}"})
    assert mask_document(text) == text.replace(KEYS["anthropic"], marker(Secret.PROVIDER_KEY))


def test_both_parts_of_a_url_go_where_a_key_is_its_user() -> None:
    shown = f"https://{marker(Secret.PROVIDER_KEY)}:{marker(Secret.URL_CREDENTIALS)}@github.com/acme/app.git"
    assert mask_text(f"https://{KEYS['github']}:x-oauth-basic@github.com/acme/app.git") == shown


def test_what_is_masked_is_not_masked_again() -> None:
    text = f"{KEYS['openai']} https://me:{drawn(9)}@a.example Bearer {drawn(30)} {private_key()} https://{KEYS['github']}:x@a.example"
    once = mask_text(text)
    assert mask_text(once) == once
    assert "***" not in once


def test_documents_keep_every_byte_but_the_secrets() -> None:
    key = KEYS["anthropic"]
    text = f'{{ "id" : "toolu_1", "n":1.0e5,"input":{{"command":"curl -H \\"x-api-key: {key}\\" \\u0041", "env":{{"API_KEY":"{drawn(40)}"}}}} }}'
    masked = mask_document(text)
    shown = marker(Secret.PROVIDER_KEY)
    assert json.loads(masked) == {
        "id": "toolu_1",
        "n": 1e5,
        "input": {"command": f'curl -H "x-api-key: {shown}" A', "env": {"API_KEY": shown}},
    }
    assert masked.startswith('{ "id" : "toolu_1", "n":1.0e5,"input":{"command":')


def test_a_key_of_aws_goes_where_only_its_name_in_a_document_tells_of_it() -> None:
    for name in ("SecretAccessKey", "aws_secret_access_key", "s3SecretAccessKey", "MINIO_SECRET_KEY"):
        text = json.dumps({name: AWS_WITH_FEW_DIGITS, "name": AWS_WITH_FEW_DIGITS})
        assert json.loads(mask_document(text)) == {
            name: marker(Secret.PROVIDER_KEY),
            "name": AWS_WITH_FEW_DIGITS,
        }


@pytest.mark.parametrize(
    "name", ["Authorization", "authorization", "proxy-authorization", "Proxy_Authorization", "Author-ization"]
)
def test_a_password_goes_where_only_the_name_of_its_member_tells_of_it(name: str) -> None:
    secret = b64encode(b"me:hunter2password").decode()
    document = json.dumps(
        {"headers": {name: f"Basic {secret}", "Accept": "*/*"}, "list": [{name: [f"basic  {secret} "]}]}
    )
    shown = marker(Secret.BEARER_TOKEN)
    assert mask_document(document) == document.replace(secret, shown)
    bearer = json.dumps({name: "Bearer abcdefghijklmnopqrst"})
    assert mask_document(bearer) == json.dumps({name: f"Bearer {shown}"})
    kept = json.dumps(
        {"Accept": f"Basic {secret}", name: "Basic auth", "note": "Basic knowledge of authorization"}
    )
    assert mask_document(kept) == kept


def test_a_password_of_control_characters_goes_where_their_escapes_make_it_long() -> None:
    document = json.dumps({"url": "redis://" + "\b" * 200 + ":" + "\b" * 500 + "@cache"})
    shown = document.replace("\\b" * 500, marker(Secret.URL_CREDENTIALS))
    assert json.loads(mask_document(document)) == json.loads(shown)


def test_a_secret_goes_that_is_the_name_of_a_member() -> None:
    document = '{{"env" : {{"{}":"prod", "plain": 1, "a":[{{"redis://me:hunter2@cache" :null}}]}} }}'.format(
        KEYS["openai"]
    )
    shown = document.replace(KEYS["openai"], marker(Secret.PROVIDER_KEY)).replace(
        "hunter2", marker(Secret.URL_CREDENTIALS)
    )
    assert mask_document(document) == shown
    nested = json.dumps({"text": document.replace("env", "e\\u006ev")})
    assert KEYS["openai"] not in mask_document(nested)


def test_a_document_with_nothing_but_one_of_these_is_looked_at() -> None:
    for secret in (KEYS["telegram"], f"https://hooks.slack.com/services/T0A1B2C3D/B0A1B2C3D/{SLACK_SECRET}"):
        for before in ("", "a\n", "a\b", '"'):
            assert "[$redacted:" in mask_document(json.dumps({"text": before + secret}))


def test_a_secret_written_with_escapes_goes_too() -> None:
    key = KEYS["github"]
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in key)
    for text in (f'{{"a":"{escaped}"}}', json.dumps({"arguments": f'{{"a":"{escaped}"}}'})):
        masked = mask_document(text)
        assert marker(Secret.PROVIDER_KEY) in masked
        assert key not in json.dumps(json.loads(masked))
        assert escaped not in masked


def test_a_secret_that_is_escaped_goes_beside_one_that_is_not() -> None:
    key, other = KEYS["openai"], KEYS["github"]
    inner = json.dumps({"plain": other})[:-1] + f', "escaped": "\\u0073{key[1:]}"}}'
    for text in (inner, json.dumps({"arguments": inner})):
        masked = mask_document(text)
        assert masked.count(marker(Secret.PROVIDER_KEY)) == 2
        assert key[1:] not in masked
        assert other not in masked
        json.loads(masked)


def test_ids_cursors_and_images_in_documents_are_kept() -> None:
    image = b64encode(random.Random(1).randbytes(3000)).decode()
    kept = {
        "id": "sk-looks-like-a-key-0123456789abc",
        "tool_call_id": "call_sk-0123456789abcdefghij01",
        "next_cursor": token(),
        "page_token": f"AIza{drawn(35)}",
        "source": {"type": "base64", "media_type": "image/png", "data": image},
        "url": f"data:image/png;base64,{image}",
        "wrapped": "\n".join(image[at : at + 76] for at in range(0, len(image), 76)) + "\n",
        "thinking": f"the key {KEYS['openai']}",
        "signature": token(),
    }
    text = json.dumps(kept)
    assert mask_document(text) == text


def test_a_document_of_too_many_values_in_its_strings_is_refused_and_not_kept_as_it_is() -> None:
    inner = json.dumps({"a": "sk- \\n", "b": [0] * 500})
    text = json.dumps({"a": inner, "b": inner, "key": KEYS["openai"]})
    assert KEYS["openai"] not in mask_document(text, max_values=1_010)
    with pytest.raises(TooManyNodes):
        mask_document(text, max_values=1_000)


def test_a_long_text_takes_time_in_proportion() -> None:
    """No search backtracks, which would take hours: the timeout of the test would end it."""
    for piece in (
        "-----BEGIN PRIVATE KEY-----" + "A" * 50,
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----" + "> " * 500,
        "\\n",
        "\x1b[1m",
        "a://b:",
        "bearer ",
        "sk-",
        "eyJaaaaaaaaaa.eyJ",
        "api_key=",
        "xoxb-a-",
        "1" * 8,
        "1" * 8 + ":",
        "12345678:A" + "a" * 33,
        "secret key ",
        "aws_secret=" + "a" * 39,
        "aws_secret   ",
        "hooks.slack.com/services/",
        "hooks.slack.com/services/T0A1B2C3D/B0A1B2C3D/" + "A" * 80,
        "hooks.slack.com/services" + "/T0A1B2C3D" * 4,
        "A" * 60 + " ",
        "A" * 59 + "  ",
    ):
        text = piece * (100_000 // len(piece))
        mask_text(text)
        mask_document(json.dumps(text + "sk-"))
