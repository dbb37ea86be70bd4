"""Checks the SQL of pipelines for engines that are reached by Ibis, and names its tables as the engine does.

What is executed is generated from the syntax tree that was checked, and is checked again itself: sqlglot writes some
names of the tree as they are, for example the field of EXTRACT, and these may be any text in quotes.
"""

import re
from collections.abc import Callable, Collection

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from rota.core.errors import Invalid
from rota.kinds.pipelines.registry import path_of

FORBIDDEN = (
    *(exp.DML, exp.DDL, exp.Command, exp.Into, exp.Lock, exp.Operator, exp.QueryTransform),
    *(exp.Placeholder, exp.Parameter, exp.SessionParameter),
)
# Functions that read files, execute SQL in a text, change something, or show what others do. Those that need more
# rights than the role has are refused by the engine, too.
REFUSED_FUNCTIONS = re.compile(
    r"(pg_(?!typeof$)|lo_|dblink|txid_|has_|inet_|binary_|brin_|gin_|ts_stat|ts_rewrite|"
    r"(query|table|schema|database|cursor)_to_|xmltable|set_config|current_setting|nextval|setval|currval|lastval|"
    r"loread|lowrite|java_method|reflect|try_reflect|read_files|(from|to)_protobuf|python_worker_logs|identifier$|input_file|secret|try_secret|"
    r"http_|ai_|current_catalog|getpgusername|suppress_redundant|to_reg(?!exp)|format_type|"
    r"(obj|col|shobj)_description|reg(class|collation|config|dictionary|namespace|oper|proc|role|type|database)).*"
)
REFUSED_TYPES = re.compile(r'"?reg[a-z]+"?(\[\d*\])*|.*\..*', re.DOTALL)  # names of all objects; types of a schema
TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*m")  # of sqlglot's messages
MAX_ROUNDS = 4  # until generated SQL is read and written as it is; two are usual
SYSTEM_NAME = re.compile(r"pg_.*", re.IGNORECASE)  # of the only schema that names without one can mean


def read_select(sql: str, dialect: str) -> exp.Query:
    """Return the syntax tree of SQL. Raises Invalid unless it is one SELECT without side effects."""
    try:
        statements = [statement for statement in sqlglot.parse(sql, dialect=dialect) if statement is not None]
    except SqlglotError as error:
        raise Invalid("sql", sql, f"is not SQL: {TERMINAL_CODE.sub('', str(error))}") from error
    except RecursionError as error:
        raise Invalid("sql", sql, "is nested too deeply") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise Invalid("sql", sql, "is not a single SELECT statement")
    (query,) = statements
    try:
        for node in query.walk():
            check_node(node)
    except RecursionError as error:
        raise Invalid("sql", sql, "is nested too deeply") from error
    assert isinstance(query, exp.Query)
    return query


def check_node(node: exp.Expr) -> None:
    """Raises Invalid for a part of a query that may not be executed."""
    if isinstance(node, exp.Select) and not node.expressions:
        raise Invalid("sql", node.sql(), "has a SELECT without columns")
    if isinstance(node, FORBIDDEN):
        text = node.sql()
        raise Invalid("sql", text, "is not allowed: a pipeline is one SELECT, without locks, parameters and commands")
    if isinstance(node, exp.CTE) and SYSTEM_NAME.fullmatch(node.alias):
        raise Invalid("sql", node.alias, "is the name of a system table; rename the WITH query")
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
        raise Invalid("sql", node.sql(), "is a function of a schema; only functions of the engine itself are allowed")
    if isinstance(node, exp.DataType) and REFUSED_TYPES.fullmatch(node.sql().lower()):
        raise Invalid("sql", node.sql(), "is a type that a pipeline may not use")
    if isinstance(node, exp.Func):
        is_anonymous = isinstance(node, exp.Anonymous | exp.AnonymousAggFunc)
        for name in [node.name] if is_anonymous else [*node.sql_names(), node.key]:
            if REFUSED_FUNCTIONS.fullmatch(name.lower()):
                raise Invalid("sql", name.lower(), "is a function that a pipeline may not call")


def tables_of(query: exp.Query) -> list[str]:
    """Return the paths of the tables that a query reads. Raises Invalid for a table that is not that of a pipeline."""
    return sorted({path for table in named_tables(query) if (path := path_of_table(table))})


def with_tables(query: exp.Query, place: Callable[[str], tuple[str, str]], dialect: str) -> str:
    """Return the SQL of a query whose tables have the schema and name of `place`, of a path. Raises Invalid if it is
    read as another query than this."""
    query, places = query.copy(), set[tuple[str, str]]()
    for column in query.find_all(exp.Column):  # sales.bronze.orders.day: of the table, which has its name as alias
        if column.args.get("catalog"):
            column.set("catalog", None)
            column.set("db", None)
    for table in list(named_tables(query)):
        path = path_of_table(table)
        if path is not None:
            schema, name = place(path)
            places.add((schema, name))
            if not table.alias:
                table.set("alias", exp.TableAlias(this=table.this.copy()))
            table.set("catalog", None)
            table.set("db", exp.to_identifier(schema, quoted=True) if schema else None)
            table.set("this", exp.to_identifier(name, quoted=True))
    return checked_text(query.sql(dialect=dialect, comments=False), places, dialect)


def checked_text(sql: str, places: Collection[tuple[str, str]], dialect: str) -> str:
    """Return generated SQL as it is executed: it is read and written as it is, and passes all checks. Raises
    Invalid."""
    for _ in range(MAX_ROUNDS):
        query = read_select(sql, dialect)
        for table in named_tables(query):
            if table.catalog or (table.db, table.name) not in places:
                raise Invalid("sql", table.sql(), "is not the table of a pipeline, namespace.layer.name")
        text = query.sql(dialect=dialect, comments=False)
        if text == sql:
            return text
        sql = text
    raise Invalid("sql", sql, "cannot be read without doubt; write it in a simpler way")


def named_tables(query: exp.Query) -> list[exp.Table]:
    ctes = {cte.alias.lower() for cte in query.find_all(exp.CTE)}
    named = [table for table in query.find_all(exp.Table) if isinstance(table.this, exp.Identifier)]
    return [table for table in named if table.db or table.catalog or table.name.lower() not in ctes]


def path_of_table(table: exp.Table) -> str:
    parts = [part.lower() for part in (table.catalog, table.db, table.name)]
    try:
        return path_of(*parts)
    except Invalid as error:
        name = ".".join(part for part in parts if part)
        raise Invalid("sql", name, "is not the table of a pipeline, namespace.layer.name") from error
