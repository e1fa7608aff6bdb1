"""The product has no statement and no name that it does not use, and calls libraries by public names."""

import ast
import re
from collections import Counter

from tests.support.sources import ROOT, parsed, product_files, source_of

TESTED_RULES = {
    # The explanation of guarded statements: a test compares each with PostgreSQL.
    *("is_claimable", "share_out", "attempts_of_take", "may_revoke", "refused_until"),
}
FOR_TESTS = {"run_due", "in_flight", "load_all_spans", "RUN_REASONS"}
CALLED_BY_LIBRARIES = {"redirect_request", "on_start"}
MAY_USE_PRIVATE_NAMES = {
    "services/attachment-blob/spawnmesh_attachment_blob/clients/multiparts.py",
    "libs/postgres/spawnmesh_postgres/yoyo_backend.py",
}
DOCUMENTED = {"_replace", "_asdict", "_exit", "_logs", "_log_exporter"}
"""Names of the standard library, and of the API for logs of OpenTelemetry, which has no other."""


def test_every_statement_is_run_by_the_module_beside_it() -> None:
    """A family such as `delete_{table}` is run if the module's package names each table."""
    unused = []
    files = [*ROOT.glob("services/*/*/store/*.sql"), *ROOT.glob("libs/postgres/spawnmesh_postgres/**/*.sql")]
    assert len(files) > 50
    modules = product_files()
    for file in sorted(files):
        names = re.findall(r"^-- name: (\w+)", file.read_text(), re.MULTILINE)
        source = source_of(file.with_suffix(".py")) if names else ""
        package = [other for other in modules if file.parent.parent in other.parents]
        families = re.findall(r'_SQL\[f"(\w+)\{', source)
        for name in names:
            members = [name.removeprefix(family) for family in families if name.startswith(family)]
            is_member = any(f'"{one}"' in source_of(other) for one in members for other in package)
            if f'"{name}"' not in source and not is_member:
                unused.append(f"{file.relative_to(ROOT)}: {name}")
    assert unused == []


def test_every_function_and_view_of_a_schema_is_used() -> None:
    unused = []
    library = ROOT / "libs/postgres/spawnmesh_postgres"
    shared = [file.read_text() for file in (*library.rglob("*.py"), *library.rglob("*.sql"))]
    for file in sorted(ROOT.glob("services/*/spawnmesh_*/migrations/*.sql")):
        store = file.parent.parent / "store"
        statements = [other.read_text() for other in (*store.glob("*.py"), *store.glob("*.sql"))]
        text = re.sub(r"--.*", "", file.read_text())
        for name in re.findall(r"^create (?:function|view) (\w+)", text, re.MULTILINE):
            named = re.compile(rf"(?<!function )(?<!view )\b{name}\b")
            if not any(named.search(source) for source in (text, *statements, *shared)):
                unused.append(f"{file.name}: {name}")
    assert unused == []


def test_every_name_is_used() -> None:
    """A function, class or constant is named by the product in more places than its definition."""
    texts = [*map(source_of, product_files())]
    texts += [file.read_text() for file in ROOT.glob("services/*/*/templates/**/*.html")]
    texts += [file.read_text() for file in ROOT.glob("libs/protos/*.py")]
    count = Counter(word for text in texts for word in re.findall(r"\w+", text))
    defined = re.compile(r"^(?: *(?:async )?def|class) (\w+)|^([A-Z_]\w*)(?:: [^=\n]+)? = ", re.MULTILINE)
    decorated = re.compile(r"^ *@[^\n]+(?:\n(?! *class )[^\n]*)*?\n *(?:async )?def (\w+)", re.MULTILINE)
    unused = []
    for file in product_files():
        names = {first or second for first, second in defined.findall(source_of(file))}
        rare = {name for name in names if count[name] == 1 and not name.startswith("__")}
        if rare:
            rare -= set(decorated.findall(source_of(file)))  # A validator, a command, a page.
        unused += [
            f"{file.relative_to(ROOT)}: {name}"
            for name in sorted(rare - TESTED_RULES - FOR_TESTS - CALLED_BY_LIBRARIES)
        ]
    assert unused == []


def test_private_names_of_libraries_are_used_in_workarounds_alone() -> None:
    files = [
        file
        for file in product_files()
        if file.parent.name != "workarounds" and str(file.relative_to(ROOT)) not in MAY_USE_PRIVATE_NAMES
    ]
    own = {name for file in files for name in re.findall(r"\b_[a-z]\w+", without_uses(source_of(file)))}
    guilty = []
    for file in files:
        if not re.search(r"\._[a-z]|import .*\b_[a-z]", source_of(file)):
            continue
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Attribute):
                used = [node.attr]
            elif isinstance(node, ast.ImportFrom):
                used = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            else:
                continue
            guilty += [
                f"{file.relative_to(ROOT)}:{node.lineno}: {name}"
                for name in used
                if re.match(r"_[a-z]", name) and name not in own | DOCUMENTED
            ]
    assert guilty == []


def without_uses(source: str) -> str:
    """Leave out the private attributes of anything but an instance or a class itself."""
    return re.sub(r"(?<!\bself)(?<!\bcls)\._[a-z]\w+", "", source)
