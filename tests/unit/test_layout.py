"""Every service has the same rooms, an RPC is found by its name, and prose follows the style."""

import ast
import importlib
import io
import re
import tokenize
import tomllib
from pathlib import Path

import pytest
from google.protobuf.descriptor_pool import Default

from tests.support.sources import ROOT, parsed, product_files, source_of

SERVICES = ("session", "attachment_blob", "transcript", "model_router", "hook")
ROOMS = {"rpc", "operations", "domain", "store", "clients", "jobs", "migrations"}
TOP = {"__init__", "__main__", "app", "settings", "metrics", "gauges", "telemetry", "py"}  # As in `py.typed`.
SERVED_ELSEWHERE = {"HookHandlerService"}  # Plugins serve it.


def package_of(service: str) -> Path:
    return ROOT / "services" / service.replace("_", "-") / f"spawnmesh_{service}"


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def rpcs() -> list[tuple[str, str]]:
    """Every RPC of the contracts, with the service that serves it."""
    found = []
    for service in SERVICES:
        folder = ROOT / "protos" / "spawnmesh" / service / "v1"
        for file in sorted(folder.glob("*_service.proto")):
            name = f"spawnmesh/{service}/v1/{file.name}"
            importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            for described in Default().FindFileByName(name).services_by_name.values():
                if described.name not in SERVED_ELSEWHERE:
                    found += [(service, method.name) for method in described.methods]
    return found


def test_each_rpc_has_a_module_and_a_function_of_its_name() -> None:
    lacking = []
    for service, rpc in rpcs():
        module = package_of(service) / "rpc" / f"{snake(rpc)}.py"
        defined = re.compile(rf"^(async )?def {snake(rpc)}\(", re.MULTILINE)
        if not module.exists() or not defined.search(source_of(module)):
            lacking.append(f"{rpc} is expected in {module.relative_to(ROOT)}")
    assert lacking == []


_SHARED_BY_RPCS = re.compile(
    r"servicer|dependencies|messages|tenant_data|\w+_(servicer|messages|cursor)|__init__"
)


@pytest.mark.parametrize("service", SERVICES)
def test_the_folder_of_rpcs_has_only_rpcs_and_their_messages(service: str) -> None:
    """Steps and checks that RPCs share are in `operations`."""
    names = {file.stem for file in (package_of(service) / "rpc").glob("*.py")}
    of_rpcs = {snake(rpc) for owner, rpc in rpcs() if owner == service}
    assert {name for name in names - of_rpcs if not _SHARED_BY_RPCS.fullmatch(name)} == set()


def test_imports_of_every_module_of_messages_are_checked() -> None:
    """`make imports` keeps operations and statements out of the modules that its contract names."""
    modules = {
        f"spawnmesh_{service}.rpc.{file.stem}"
        for service in SERVICES
        for file in (package_of(service) / "rpc").glob("*.py")
        if re.fullmatch(r"(\w+_)?messages|\w+_cursor", file.stem)
    }
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (checked,) = (one for one in contracts if one["name"].startswith("Messages are parsed and rendered"))
    assert set(checked["source_modules"]) == modules
    rooms = {
        f"spawnmesh_{service}.{room}"
        for service in SERVICES
        for room in ("operations", "jobs", "store", "clients")
    }
    assert set(checked["forbidden_modules"]) == rooms


def test_each_rpc_has_contract_tests_of_its_name() -> None:
    named = {
        (service, found)
        for service in SERVICES
        for file in (ROOT / "tests/contract" / service).rglob("test_*.py")
        for found in re.findall(r"def test_([A-Z]\w*?)__", file.read_text())
    }
    missing = [f"{service}: {rpc}" for service, rpc in rpcs() if (service, rpc) not in named]
    assert not missing, "no contract test is named test_<RPC>__… for these RPCs"


@pytest.mark.parametrize("owner", [*SERVICES, "runner", "console", "runtime", "postgres"])
def test_contract_tests_are_in_folders_by_subject(owner: str) -> None:
    assert list((ROOT / "tests" / "contract" / owner).glob("test_*.py")) == []


@pytest.mark.parametrize("service", SERVICES)
def test_service_has_the_rooms_and_nothing_beside_them(service: str) -> None:
    entries = {path for path in package_of(service).iterdir() if path.name != "__pycache__"}
    assert {path.name for path in entries if path.is_dir()} <= ROOMS
    assert {path.stem for path in entries if path.is_file()} <= TOP


def test_runner_has_its_rooms_and_nothing_beside_them() -> None:
    entries = [path for path in package_of("runner").iterdir() if path.name != "__pycache__"]
    assert {path.name for path in entries if path.is_dir()} == {"loop", "tools", "clients", "domain"}
    assert {path.stem for path in entries if path.is_file()} <= TOP


def test_console_has_its_rooms_and_nothing_beside_them() -> None:
    entries = [path for path in package_of("console").iterdir() if path.name != "__pycache__"]
    rooms = {"pages", "web", "clients", "domain", "templates", "static"}
    assert {path.name for path in entries if path.is_dir()} == rooms
    assert {path.stem for path in entries if path.is_file()} <= {*TOP, "server"}


@pytest.mark.parametrize("service", SERVICES)
def test_sql_lies_in_the_store(service: str) -> None:
    files = [file for file in package_of(service).rglob("*.sql") if file.parent.name != "migrations"]
    assert files
    assert {file.parent.name for file in files} == {"store"}


def test_rows_stay_in_the_module_that_runs_the_statement() -> None:
    """A store hands out frozen dataclasses. `rows.py` has what modules of one store share."""
    guilty = []
    raw = re.compile(r"\b(Row|DictRow|TupleRow|AsyncCursor)\b|Mapping\[str, Any\]|^Any$")
    library = ROOT / "libs/postgres/spawnmesh_postgres"
    stores = [file for service in SERVICES for file in (package_of(service) / "store").glob("*.py")]
    stores += [file for file in library.rglob("*.py") if file.with_suffix(".sql").exists()]
    assert len(stores) > 50
    for file in stores:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
                is_shared = not node.name.startswith("_") and file.name != "rows.py"
                if is_shared and raw.search(ast.unparse(node.returns)):
                    guilty.append(f"{file.relative_to(ROOT)}: {node.name}")
    assert guilty == []
    fetched = re.compile(r"\bfetch(one|many|all)\(|spawnmesh_postgres\.rows|\bDictRow\b")
    outside = [file for service in SERVICES for file in package_of(service).rglob("*.py")]
    outside = [file for file in outside if file not in stores]
    assert [str(file.relative_to(ROOT)) for file in outside if fetched.search(source_of(file))] == []


def test_no_two_classes_share_a_name() -> None:
    """A name that two classes have says too little. `Dependencies` and `Worker` mean the same in
    each service. The client shows its users the nouns of the contracts, which services use, too.
    """
    places: dict[tuple[str, bool], list[str]] = {}
    for file in (*product_files(), ROOT / "libs/protos/generate.py", ROOT / "libs/protos/reference.py"):
        for name in re.findall(r"^[ \t]*class (\w+)[:(]", source_of(file), re.MULTILINE):
            if name not in ("Dependencies", "Worker"):
                is_client = (ROOT / "libs" / "client") in file.parents
                places.setdefault((name, is_client), []).append(str(file.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("service", SERVICES)
def test_schema_begins_with_one_file_and_migrations_are_numbered(service: str) -> None:
    files = sorted(file.name for file in (package_of(service) / "migrations").glob("*.sql"))
    assert files[0] == f"0001_{service}.sql"
    assert [file[:5] for file in files] == [f"{number:04}_" for number in range(1, len(files) + 1)]


@pytest.mark.parametrize("service", ["session", "transcript"])
def test_contents_of_a_large_schema_list_its_sections_and_objects(service: str) -> None:
    text = (package_of(service) / "migrations" / f"0001_{service}.sql").read_text()
    head, *parts = re.split(r"^-- -{60,}\n-- (.+)\n-- -{60,}\n", text, flags=re.MULTILINE)
    listed = re.sub(r",?\n--     ", ", ", head.partition("-- Contents\n")[2]).strip()
    expected = []
    for section, body in zip(parts[::2], parts[1::2], strict=True):
        objects = re.findall(r"^create (?:table|view|type|function) (\w+)", body, re.MULTILINE)
        expected.append("--   " + ", ".join([section, *objects]))
    assert listed.splitlines() == expected


def docstrings(tree: ast.Module) -> list[str]:
    """Return the strings that stand alone: docstrings, and those below an attribute."""
    return [
        node.value.value.strip()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


def comments_of(source: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


_RIDDLE = re.compile(r"^(What|Who|Whoever|Whatever|How|Whether|Where)\b")
_QUOTED_RIDDLE = re.compile(r"[\"'](\\\n)?\s*(What|Who|Whoever|Whatever|How|Whether|Where)\b")
_PRIVATE_WORDS = re.compile(
    r"\b(tellers?|untold|bur(y|ied)|whereabouts|afterwards|nobody|somebody|whoever|look_at|enrol)\b",
    re.IGNORECASE,
)


def test_prose_is_plain() -> None:
    guilty = []
    written = [*ROOT.glob("tests/bench/*.py"), *ROOT.glob("tests/fuzz/*.py")]
    written += [*ROOT.glob("tests/deploy/*.py"), *ROOT.glob("tests/support/deploy/*.py")]
    for file in (*product_files(), *written):
        source = source_of(file)
        if not _PRIVATE_WORDS.search(source) and not _QUOTED_RIDDLE.search(source):
            continue
        texts = docstrings(parsed(file))
        comments = comments_of(source) if _PRIVATE_WORDS.search(source) else []
        first_lines = [text.splitlines()[0] for text in texts if _RIDDLE.match(text)]
        private = [text for text in texts + comments if _PRIVATE_WORDS.search(text)]
        guilty += [f"{file.relative_to(ROOT)}: {text}" for text in first_lines + private]
    assert guilty == []


def test_log_events_have_names_and_no_sentences() -> None:
    """Facts are fields of an event, so that a search finds each event by one name.

    The client logs sentences: it logs by the logging of the program that uses it.
    """
    logged = re.compile(r"log(?:ger)?\.(?:debug|info|warning|error|exception)\(\s*f?\"([^\"]*)\"")
    files = [file for file in product_files() if ROOT / "libs" / "client" not in file.parents]
    events = [(file, event) for file in files for event in logged.findall(source_of(file))]
    assert len(events) > 100
    assert [str(file) for file, event in events if not re.fullmatch(r"[a-z][a-z0-9_]*", event)] == []


def test_comments_of_contracts_and_statements_are_plain() -> None:
    guilty = []
    for file in sorted([*(ROOT / "protos" / "spawnmesh").rglob("*.proto"), *ROOT.glob("services/**/*.sql")]):
        mark, comment = ("//" if file.suffix == ".proto" else "--"), ""
        for number, line in enumerate(file.read_text().splitlines(), 1):
            text = line.strip().removeprefix(mark).strip() if line.strip().startswith(mark) else ""
            is_riddle = not comment and _RIDDLE.match(text)
            if text and (is_riddle or len(line) > 100):
                guilty.append(f"{file.relative_to(ROOT)}:{number}: {text}")
            comment = text
    assert guilty == []


def test_sql_has_short_lines() -> None:
    long = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in sorted(ROOT.glob("services/**/*.sql"))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > (100 if line.lstrip().startswith("--") else 110)
    ]
    assert long == []


def test_pages_have_short_lines() -> None:
    """Tables, code and links cannot be wrapped."""
    long = []
    for file in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*/README.md")]):
        in_code = False
        for number, line in enumerate(file.read_text().splitlines(), 1):
            in_code ^= line.lstrip().startswith("```")
            words = line.split()
            wrappable = len(words) > 1 and max(map(len, words)) < 60 and not line.startswith("|")
            if len(line) > 100 and not in_code and wrappable and not re.search(r"`|\]\(", line):
                long.append(f"{file.relative_to(ROOT)}:{number}")
    assert long == []


def test_decisions_are_few_and_have_their_parts_on_one_page() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    assert 1 <= len(pages) <= 25
    for number, page in enumerate(pages, 1):
        text = page.read_text()
        assert page.name.startswith(f"{number:04}-")
        assert text.startswith(f"# {number}. "), page.name
        lines = text.splitlines()
        assert len(lines) <= 65, f"{page.name} is longer than a page"
        assert all(len(line) <= 100 or max(map(len, line.split())) > 60 for line in lines), page.name
        for part in (
            "- Date: ",
            "- Status: ",
            "## Context",
            "## Decision",
            "## Alternatives",
            "## Consequences",
        ):
            assert part in text, f"{page.name} lacks {part}"


@pytest.mark.parametrize(
    "project", sorted([*ROOT.glob("libs/*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")]), ids=lambda file: file.parent.name
)  # fmt: skip
def test_package_has_a_license_and_a_readme(project: Path) -> None:
    assert tomllib.loads(project.read_text())["project"]["license"] == "Apache-2.0"
    readme = (project.parent / "README.md").read_text()
    assert 7 <= len(readme.splitlines()) <= 18
    package = next(project.parent.glob("spawnmesh*/"), project.parent)
    for path in re.findall(r"`([\w-]+(?:/[\w.-]+)+|\w+\.py)`", readme):
        places = (ROOT / path, project.parent / path, package / path)
        assert any(place.exists() for place in places), f"{path} is not there"


_SHORT_WAIT = re.compile(
    r"within_seconds(: float)?\s*=\s*[1-5]?\d(\.\d*)?\b|asyncio\.timeout\(\s*[1-5]?\d(\.\d*)?\s*\)|wait_for\("
)
_GUARD_SECONDS = 60.0


def short_waits(tree: ast.Module) -> list[int]:
    """Return the lines of waits that a busy machine may outlast, as far as their time is a literal.

    A time-out of less than a second is one that a test expects to elapse.
    """
    given: list[tuple[ast.expr | None, float]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given += [(word.value, 0.0) for word in node.keywords if word.arg == "within_seconds"]
            called = ast.unparse(node.func)
            if called == "asyncio.timeout":
                given += [(argument, 1.0) for argument in node.args]
            elif called.endswith("wait_for"):
                given += [(argument, 1.0) for argument in node.args[1:]]
                given += [(word.value, 1.0) for word in node.keywords if word.arg == "timeout"]
        elif isinstance(node, ast.arguments):
            defaults = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            given += [(value, 0.0) for argument, value in defaults if argument.arg == "within_seconds"]
            positional = node.args[len(node.args) - len(node.defaults) :]
            defaults = zip(positional, node.defaults, strict=True)
            given += [(value, 0.0) for argument, value in defaults if argument.arg == "within_seconds"]
    return [
        value.lineno
        for value, least in given
        if isinstance(value, ast.Constant)
        and isinstance(value.value, int | float)
        and least <= value.value < _GUARD_SECONDS
    ]


def test_what_must_happen_has_a_minute() -> None:
    """A shorter wait fails on a busy machine. Let a test count, or move what it must not wait for
    further away. Benchmarks alone measure times.
    """
    guilty = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        is_measured = file.relative_to(ROOT / "tests").parts[0] in ("bench", "fuzz", "simulation")
        if not is_measured and _SHORT_WAIT.search(source_of(file)):
            guilty += [f"{file.relative_to(ROOT)}:{line}" for line in short_waits(parsed(file))]
    assert guilty == []


def test_nothing_is_imported_from_a_test_module() -> None:
    """Except by the modules that run contract tests a second time, on a cluster."""
    imported = re.compile(r"^\s*(?:from|import) (?:tests\.[\w.]*|\.)\.?(?:test_|conftest)\w*", re.MULTILINE)
    guilty = [
        f"{file.relative_to(ROOT)}: {match.group().strip()}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for match in imported.finditer(file.read_text())
        if file.parent != ROOT / "tests" / "citus"
    ]
    assert guilty == []
