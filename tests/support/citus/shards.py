"""Says of a statement whether a Citus cluster runs it on one shard, by its parse tree."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pglast import ast, parse_sql
from pglast.enums import A_Expr_Kind, BoolExprType, ConstrType
from spawnmesh_postgres.citus import STAYS_LOCAL

TENANT = "tenant_id"
_PARAMETER = re.compile(r"%\((\w+)\)[sbt]")
_CLOCKS = ("now", "clock_timestamp", "statement_timestamp", "transaction_timestamp")
Node = Any


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a service by where a cluster stores them. `keys` has their primary keys; views
    have none.
    """

    distributed: frozenset[str]
    local: frozenset[str]
    keys: Mapping[str, tuple[str, ...]]


def schema_of(migrations: Iterable[str]) -> Schema:
    """Read the tables and views that migrations create. A view is as distributed as its tables."""
    tables: dict[str, bool] = {}
    keys: dict[str, tuple[str, ...]] = {}
    for text in migrations:
        for parsed in parse_sql(text):
            statement = parsed.stmt
            if isinstance(statement, ast.CreateStmt):
                key = keys[statement.relation.relname] = _primary_key(statement)
                tables[statement.relation.relname] = key[:1] == (TENANT,)
            elif isinstance(statement, ast.ViewStmt):
                tables[statement.view.relname] = True
            elif isinstance(statement, ast.CommentStmt) and statement.comment == STAYS_LOCAL:
                tables[statement.object[-1].sval] = False
    distributed = frozenset(name for name, is_distributed in tables.items() if is_distributed)
    return Schema(distributed, frozenset(tables) - distributed, keys)


def _primary_key(table: ast.CreateStmt) -> tuple[str, ...]:
    for element in table.tableElts:
        if isinstance(element, ast.ColumnDef):
            inline = element.constraints or ()
            if any(one.contype == ConstrType.CONSTR_PRIMARY for one in inline):
                return (str(element.colname),)
        elif element.contype == ConstrType.CONSTR_PRIMARY:
            return tuple(str(column.sval) for column in element.keys)
    return ()


@dataclass(frozen=True, slots=True)
class Routing:
    """The tables of a statement.

    `unbound` are the distributed ones whose tenant the statement does not fix to `%(tenant_id)s`.
    `refused` are the forms that Citus does not run.
    """

    distributed: frozenset[str]
    local: frozenset[str]
    unbound: frozenset[str]
    refused: frozenset[str]


def routing_of(statement: str, schema: Schema) -> Routing:
    """Return which tables a statement reads and writes, and of which it fixes no tenant.

    Raises ValueError for a form of statement or of FROM item that it does not know.
    """
    names = list(dict.fromkeys(_PARAMETER.findall(statement)))
    numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", statement).replace("%%", "%")
    (parsed,) = parse_sql(numbered)
    check = _Check(schema, names.index(TENANT) + 1 if TENANT in names else 0)
    check.query(parsed.stmt, {})
    return Routing(
        frozenset(check.distributed),
        frozenset(check.local),
        frozenset(check.unbound),
        frozenset(_refused_forms(parsed.stmt, schema)),
    )


@dataclass(slots=True)
class _Check:
    """Walks over the levels of a query.

    A condition of a subquery that names a table around it fixes nothing: Citus does not look
    through it.
    """

    schema: Schema
    parameter: int
    distributed: set[str] = field(default_factory=set)
    local: set[str] = field(default_factory=set)
    unbound: set[str] = field(default_factory=set)

    def query(self, node: Node, ctes: dict[str, bool]) -> bool:
        """Check a query. Return whether every distributed table in it has its tenant fixed."""
        if not isinstance(node, ast.SelectStmt | ast.InsertStmt | ast.UpdateStmt | ast.DeleteStmt):
            raise ValueError(f"{type(node).__name__} is not checked")
        before = len(self.unbound)
        ctes = self._with(node, ctes)
        if isinstance(node, ast.SelectStmt):
            self._select(node, ctes)
        elif isinstance(node, ast.InsertStmt):
            self._insert(node, ctes)
        elif isinstance(node, ast.UpdateStmt):
            self._level(node, [node.relation, *(node.fromClause or ())], ctes)
        else:
            self._level(node, [node.relation, *(node.usingClause or ())], ctes)
        return len(self.unbound) == before

    def _with(self, node: Node, ctes: dict[str, bool]) -> dict[str, bool]:
        clause = node.withClause
        if clause is None:
            return ctes
        ctes = dict(ctes)
        for cte in clause.ctes:
            if clause.recursive:
                ctes[cte.ctename] = True
            ctes[cte.ctename] = self.query(cte.ctequery, ctes)
        return ctes

    def _select(self, node: Node, ctes: dict[str, bool]) -> frozenset[str]:
        if node.larg is not None:
            self.query(node.larg, ctes)
            self.query(node.rarg, ctes)
            return frozenset()
        return self._level(node, list(node.fromClause or ()), ctes)

    def _insert(self, node: Node, ctes: dict[str, bool]) -> None:
        source = node.selectStmt
        within = self._select(source, self._with(source, ctes))
        target = node.relation.relname
        if not self._note(target):
            return
        columns = [column.name for column in node.cols or ()]
        place = columns.index(TENANT) if TENANT in columns else -1
        rows = [row for row in source.valuesLists or ()] or [[one.val for one in source.targetList]]
        if place < 0 or not all(self._is_tenant(row[place], within) for row in rows):
            self.unbound.add(target)
        self._sublinks([node.onConflictClause, node.returningClause], ctes)

    def _level(self, node: Node, sources: list[Node], ctes: dict[str, bool]) -> frozenset[str]:
        """Check one level with its FROM list. Return the names whose tenant is fixed in it."""
        tables: dict[str, str] = {}
        subqueries: dict[str, Node] = {}
        conditions = [node.whereClause]
        known: set[str] = set()
        for item in _flattened(sources):
            if isinstance(item, ast.RangeVar):
                name = item.alias.aliasname if item.alias else item.relname
                if item.relname in ctes:
                    known |= {name} if ctes[item.relname] else set()
                elif self._note(item.relname):
                    tables[name] = item.relname
            elif isinstance(item, ast.RangeSubselect):
                subqueries[item.alias.aliasname if item.alias else ""] = item.subquery
            elif isinstance(item, ast.JoinExpr):
                conditions.append(item.quals)
            elif not isinstance(item, ast.RangeFunction):
                raise ValueError(f"{type(item).__name__} is not checked")
        own = frozenset(tables) | frozenset(subqueries)
        self._bind(conditions, own, known)
        for name, subquery in subqueries.items():
            if self.query(subquery, ctes):
                known.add(name)
        self._bind(conditions, own, known)
        self.unbound |= {table for name, table in tables.items() if name not in known}
        self._sublinks([node], ctes)
        return frozenset(known)

    def _bind(self, conditions: list[Node], own: frozenset[str], known: set[str]) -> None:
        """Add the names whose tenant the conditions make equal to that of the parameter."""
        pairs = [pair for condition in conditions for pair in _equalities(condition)]
        size = -1
        while size != len(known):
            size = len(known)
            for one, other in (*pairs, *((right, left) for left, right in pairs)):
                column = _column(one)
                if column is not None and column[1] == TENANT and self._is_tenant(other, frozenset(known)):
                    known |= {column[0]} if column[0] else own

    def _is_tenant(self, node: Node, bound: frozenset[str]) -> bool:
        if isinstance(node, ast.TypeCast):
            return self._is_tenant(node.arg, bound)
        if isinstance(node, ast.ParamRef):
            return bool(node.number == self.parameter)
        column = _column(node)
        if column is None or column[1] != TENANT:
            return False
        return column[0] in bound if column[0] else bool(bound)

    def _note(self, table: str) -> bool:
        """Record a table. Return whether it is distributed."""
        is_distributed = table in self.schema.distributed
        (self.distributed if is_distributed else self.local).add(table)
        return is_distributed

    def _sublinks(self, nodes: list[Node], ctes: dict[str, bool]) -> None:
        for node in nodes:
            for subquery in _subqueries(node):
                self.query(subquery, ctes)


def _refused_forms(node: Node, schema: Schema) -> Iterator[str]:
    """Return what Citus would refuse in the query, also in those below it."""
    if isinstance(node, ast.InsertStmt) and node.relation.relname in schema.distributed:
        if node.selectStmt is not None and not node.selectStmt.valuesLists and node.onConflictClause is None:
            yield from _refused_insert(node, schema)
        if any(_calls_clock([node.onConflictClause, node.returningClause])):
            yield "the time in `on conflict` or `returning`"
    is_update = isinstance(node, ast.UpdateStmt) and node.relation.relname in schema.distributed
    if is_update and any(_calls_clock(_choices([node.targetList, node.whereClause]))):
        yield "the time in `case` or `coalesce` of an update"
    if isinstance(node, ast.CaseExpr) and node.arg is not None:
        yield "a `case` with an operand"
    if _compares_row(node):
        yield "a row that is compared with a subquery"
    for part in _parts(node):
        yield from _refused_forms(part, schema)


def _compares_row(node: Node) -> bool:
    """Return whether the node compares a row with a subquery."""
    if isinstance(node, ast.SubLink):
        return isinstance(node.testexpr, ast.RowExpr)
    if not isinstance(node, ast.A_Expr):
        return False
    sides = (node.lexpr, node.rexpr)
    return any(isinstance(side, ast.RowExpr) for side in sides) and any(
        isinstance(side, ast.SubLink) for side in sides
    )


def _refused_insert(node: Node, schema: Schema) -> Iterator[str]:
    """Return what would be refused of an insert from a query without `on conflict`."""
    sources = _flattened(node.selectStmt.fromClause or ())
    is_local = any(isinstance(one, ast.RangeVar) and one.relname in schema.distributed for one in sources)
    if is_local and node.returningClause is not None and node.relation.alias is None:
        yield "`returning` of an insert on the node of its source, without an alias of the table"
    if not is_local and node.returningClause is None:
        yield "an insert of rows of the coordinator without `returning`: a COPY, despite row-level security"


def _calls_clock(nodes: Iterable[Node]) -> Iterator[bool]:
    for node in nodes:
        if isinstance(node, ast.FuncCall):
            yield node.funcname[-1].sval in _CLOCKS
        yield from _calls_clock(_parts(node))


def _choices(nodes: Iterable[Node]) -> Iterator[Node]:
    """Return the expressions `case` and `coalesce`, but not those in subqueries."""
    for node in nodes:
        if isinstance(node, ast.CaseExpr | ast.CoalesceExpr):
            yield node
        elif not isinstance(node, ast.SubLink):
            yield from _choices(_parts(node))


def _parts(node: Node) -> Iterator[Node]:
    if isinstance(node, tuple | list):
        yield from node
    elif isinstance(node, ast.Node):
        yield from (getattr(node, name) for name in node)


def _flattened(sources: Iterable[Node]) -> Iterator[Node]:
    for source in sources:
        yield source
        if isinstance(source, ast.JoinExpr):
            yield from _flattened([source.larg, source.rarg])


def _equalities(condition: Node) -> Iterator[tuple[Node, Node]]:
    if isinstance(condition, ast.BoolExpr) and condition.boolop == BoolExprType.AND_EXPR:
        for part in condition.args:
            yield from _equalities(part)
    elif (
        isinstance(condition, ast.A_Expr)
        and condition.kind == A_Expr_Kind.AEXPR_OP
        and condition.name[-1].sval == "="
    ):
        yield condition.lexpr, condition.rexpr


def _column(node: Node) -> tuple[str, str] | None:
    """Return the qualifier, or '', and the name of a column."""
    if not isinstance(node, ast.ColumnRef) or not all(isinstance(part, ast.String) for part in node.fields):
        return None
    parts = [str(part.sval) for part in node.fields]
    return (parts[-2] if len(parts) > 1 else "", parts[-1])


def _subqueries(node: Node) -> Iterator[Node]:
    """Return the queries in expressions of the node: not those of its FROM list or its WITH."""
    if isinstance(node, ast.SubLink):
        yield node.subselect
        yield from _subqueries(node.testexpr)
    elif isinstance(node, tuple | list):
        for part in node:
            yield from _subqueries(part)
    elif isinstance(node, ast.Node):
        for name in node:
            part = getattr(node, name)
            if name == "withClause" or isinstance(part, ast.SelectStmt | ast.RangeSubselect):
                continue
            yield from _subqueries(part)
