"""The log events of the source: level and fields of each text that a process logs."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "rota"
LEVELS = {"info": "info", "warning": "warning", "error": "error", "exception": "error"}
CHOSEN_LATER = {"event": ("LOST", "database cannot be used")}  # a variable, and its constant or texts


def events() -> dict[str, tuple[list[str], list[str]]]:
    """Return levels and fields by event, except those at level debug."""
    levels: dict[str, set[str]] = defaultdict(set)
    fields: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if node.func.attr not in LEVELS or not ast.unparse(node.func.value).split("(")[0].endswith("log"):
                continue
            for text in texts_of(node.args[0], tree):
                levels[text].add(LEVELS[node.func.attr])
                fields[text] |= {keyword.arg for keyword in node.keywords if keyword.arg} - {"exc_info"}
    return {text: (sorted(levels[text]), sorted(fields[text])) for text in levels}


def texts_of(argument: ast.expr, tree: ast.Module) -> list[str]:
    if isinstance(argument, ast.Constant):
        return [str(argument.value)]
    constants = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if isinstance(argument, ast.Name) and argument.id in constants:
        return [str(constants[argument.id])]
    return [str(constants.get(name, name)) for name in CHOSEN_LATER[ast.unparse(argument)]]
