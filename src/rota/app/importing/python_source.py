"""Python files as data: literals, constants and calls of known constructors, read from the syntax tree. Nothing of the
file is executed."""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from rota.app.files.documents import FileError
from rota.app.importing.patterns import NotConvertible
from rota.app.importing.sources import SourceFile
from rota.core.timing.dst import zone_names

TEXT_CHARACTERS = 120
NODES_MAX = 500_000
SCOPES = {
    ast.For: "a loop", ast.AsyncFor: "a loop", ast.While: "a loop", ast.If: "a condition", ast.Try: "a try block",
    ast.ListComp: "a comprehension", ast.DictComp: "a comprehension", ast.GeneratorExp: "a comprehension",
    ast.Lambda: "a function",
}  # fmt: skip
LOOPS = ("a loop", "a comprehension")
UNSET = object()


class NotLiteral(NotConvertible):
    """A value follows only from running the file; the message says what it is and on which line."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a known constructor with literal arguments."""

    name: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]


@dataclass(slots=True)
class Program:
    """A parsed file."""

    file: str
    text: str
    tree: ast.Module
    constructors: Mapping[str, Callable[..., object]]
    imports: dict[str, str] = field(default_factory=dict)  # dotted names by the name in the file
    constants: dict[str, ast.expr] = field(default_factory=dict)  # of names that are assigned once, in the module
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    scopes: dict[ast.AST, tuple[str, ...]] = field(default_factory=dict)  # "a loop" … around a node
    under_value: set[str] = field(default_factory=set)  # constants that are evaluated now

    def dotted(self, node: ast.AST) -> str | None:
        """Return the dotted name of a name or attribute, through the imports; None for another expression."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            parent = self.dotted(node.value)
            return None if parent is None else f"{parent}.{node.attr}"
        return None

    def value(self, node: ast.expr) -> object:
        """Return the value of an expression. Raises NotLiteral."""
        try:
            return self.evaluate(node)
        except RecursionError:
            raise NotLiteral(f"line {node.lineno}: is nested too deeply") from None
        except (TypeError, ValueError, OverflowError, ArithmeticError, LookupError) as error:
            raise NotLiteral(f"line {node.lineno}: {source_of(node)} is wrong: {error}") from None

    def evaluate(self, node: ast.expr) -> object:
        match node:
            case ast.Constant(value):
                return value
            case ast.Tuple(items):
                return tuple(self.evaluate(item) for item in items)
            case ast.List(items):
                return [self.evaluate(item) for item in items]
            case ast.Set(items):
                return {self.evaluate(item) for item in items}
            case ast.Dict(keys, values) if None not in keys:
                return {
                    self.evaluate(key): self.evaluate(value) for key, value in zip(keys, values, strict=True) if key
                }
            case ast.UnaryOp(ast.USub(), operand):
                return -self.number(operand)
            case ast.BinOp(left, ast.Add(), right):
                return self.added(self.evaluate(left), self.evaluate(right), node)
            case ast.BinOp(left, ast.Sub(), right):
                return self.number(left) - self.number(right)
            case ast.BinOp(left, ast.Mult(), right):
                return self.number(left) * self.number(right)
            case ast.BinOp(left, ast.Div(), right):
                return self.number(left) / self.number(right)
            case ast.Name(name) if name in self.constants and name not in self.under_value:
                self.under_value.add(name)
                try:
                    return self.evaluate(self.constants[name])
                finally:
                    self.under_value.discard(name)
            case ast.Call():
                return self.called(node)
            case ast.Name() | ast.Attribute() if (known := self.known(self.dotted(node))) is not None:
                return known
        raise NotLiteral(f"line {node.lineno}: {source_of(node)} is not a literal")

    def number(self, node: ast.expr) -> float:
        value = self.evaluate(node)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
            raise NotLiteral(f"line {node.lineno}: {source_of(node)} is not a number that can be read")
        return value

    def added(self, left: object, right: object, node: ast.expr) -> object:
        match left, right:
            case (int() | float(), int() | float()):
                return left + right
            case (timedelta(), timedelta()):
                return left + right
            case (str(), str()) if len(left) + len(right) <= 1_000_000:
                return left + right
            case _:
                raise NotLiteral(f"line {node.lineno}: {source_of(node)} is not a literal")

    def known(self, name: str | None) -> object | None:
        return (
            UTC if name in ("datetime.timezone.utc", "datetime.UTC", "pytz.utc", "pytz.UTC", "pendulum.UTC") else None
        )

    def called(self, node: ast.Call) -> object:
        name = self.dotted(node.func)
        constructor = CONSTRUCTORS.get(name or "") or self.constructors.get(name or "")
        if constructor is None or name is None:
            raise NotLiteral(f"line {node.lineno}: {source_of(node)} is not a literal")
        if any(isinstance(item, ast.Starred) for item in node.args) or any(item.arg is None for item in node.keywords):
            raise NotLiteral(f"line {node.lineno}: {source_of(node)} has * or ** arguments")
        args = [self.evaluate(item) for item in node.args]
        return constructor(*args, **{str(item.arg): self.evaluate(item.value) for item in node.keywords})

    def arguments(self, call: ast.Call, names: tuple[str, ...] = ()) -> dict[str, ast.expr]:
        """Return the arguments of a call by name; positional ones have the given names. Raises NotLiteral for * and
        **, and for more positional arguments than names."""
        if any(isinstance(item, ast.Starred) for item in call.args) or len(call.args) > len(names):
            raise NotLiteral(f"line {call.lineno}: its positional arguments cannot be read")
        arguments = dict(zip(names, call.args, strict=False))
        for keyword in call.keywords:
            if keyword.arg is None:
                raise NotLiteral(f"line {call.lineno}: its ** arguments cannot be read")
            arguments[keyword.arg] = keyword.value
        return arguments

    def nodes(self) -> Iterator[ast.AST]:
        """Yield all nodes in the order of the file."""
        yield from self.scopes


def read_program(source: SourceFile, constructors: Mapping[str, Callable[..., object]]) -> Program:
    """Parse a file. Raises FileError."""
    try:
        tree = ast.parse(source.text)
    except SyntaxError as error:
        raise FileError(f"{source.name}:{error.lineno or 1}: is not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise FileError(f"{source.name}: cannot be parsed: {error}") from None
    program = Program(source.name, source.text, tree, constructors)
    stack: list[tuple[ast.AST, tuple[str, ...]]] = [(tree, ())]
    while stack:
        node, scopes = stack.pop()
        program.scopes[node] = scopes
        if len(program.scopes) > NODES_MAX:
            raise FileError(f"{source.name}: is too large: more than {NODES_MAX} nodes")
        note_names(program, node)
        inner = scopes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (*scopes, f"function {node.name}")
        elif type(node) in SCOPES:
            inner = (*scopes, SCOPES[type(node)])
        decorators = getattr(node, "decorator_list", [])
        children = [(child, scopes if child in decorators else inner) for child in ast.iter_child_nodes(node)]
        stack += reversed(children)
    note_constants(program)
    return program


def note_names(program: Program, node: ast.AST) -> None:
    match node:
        case ast.Import(names):
            for alias in names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                program.imports[alias.asname or name] = name
        case ast.ImportFrom(module, names, level):
            for alias in names:
                program.imports[alias.asname or alias.name] = f"{'.' * level}{module or ''}.{alias.name}"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            program.functions.setdefault(node.name, node)
        case _:
            pass


def note_constants(program: Program) -> None:
    """Note names that are assigned in the module, and nowhere else."""
    bound: dict[str, int] = {}
    for node in program.scopes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            bound[node.id] = bound.get(node.id, 0) + 1
    for statement in program.tree.body:
        match statement:
            case ast.Assign([ast.Name(name)], value) if bound[name] == 1:
                program.constants[name] = value
            case ast.AnnAssign(ast.Name(name), _, value) if value is not None and bound[name] == 1:
                program.constants[name] = value


def source_of(node: ast.AST) -> str:
    """Return the beginning of the source of a node, in one line."""
    if isinstance(node, ast.Call) and len(node.args) + len(node.keywords) > 8:
        return f"{ast.unparse(node.func)}(…)"[:TEXT_CHARACTERS]
    try:
        text = " ".join(ast.unparse(node).split())
    except RecursionError:
        return "(…)"
    return text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 1]}…"


def in_loop(program: Program, node: ast.AST) -> bool:
    return any(scope in LOOPS for scope in program.scopes.get(node, ()))


def scope_notes(program: Program, node: ast.AST) -> list[str]:
    """Return a note if a node stands in a condition or function, which may not run."""
    scopes = program.scopes.get(node, ())
    return [f"stands in {' in '.join(reversed(scopes))}, which was not run"] if scopes else []


def zone_from(name: object) -> ZoneInfo:
    if not isinstance(name, str) or name not in zone_names():
        raise ValueError(f"{name!r} is not a time zone")
    return ZoneInfo(name)


def pendulum_datetime(
    year: int,
    month: int,
    day: int,
    hour: int = 0,
    minute: int = 0,
    second: int = 0,
    microsecond: int = 0,
    tz: object = UTC,
) -> datetime:
    zone = zone_from(tz) if isinstance(tz, str) else tz
    if not isinstance(zone, tzinfo):
        raise ValueError("tz is not a time zone")
    return datetime(year, month, day, hour, minute, second, microsecond, tzinfo=zone)


CONSTRUCTORS: dict[str, Callable[..., object]] = {
    "datetime.timedelta": timedelta,
    "datetime.datetime": datetime,
    "datetime.date": date,
    "pendulum.duration": timedelta,
    "pendulum.datetime": pendulum_datetime,
    "pendulum.timezone": zone_from,
    "zoneinfo.ZoneInfo": zone_from,
    "pytz.timezone": zone_from,
    "dict": dict,
}
