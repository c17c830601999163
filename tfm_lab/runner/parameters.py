"""Parameters of a notebook: what its tagged cell declares, what a caller may set, what later cells really read.

papermill only logs a mistyped name and never looks whether a parameter has any effect. Here both are errors.
"""

import ast
import difflib
import io
import re
import tokenize
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

TAG = "parameters"
TYPES = (bool, int, float, str, list)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One name that a notebook lets its caller set.

    Attributes:
        name: the Python name.
        default: a plain literal; its type is the parameter's type.
        help: the comment on the same line.
    """

    name: str
    default: bool | int | float | str | list[object]
    help: str = ""


def declared_parameters(notebook: NotebookNode) -> dict[str, Parameter]:
    """Parameters by name, in the order of the notebook's tagged cell.

    Raises:
        ValueError: unless exactly one code cell is tagged ``parameters`` and it holds plain assignments alone.
    """
    source = notebook.cells[_parameters_index(notebook)].source
    comments = _comments_by_line(source)
    parameters: dict[str, Parameter] = {}
    for statement in _parse(source, "the parameters cell").body:
        name, value = _assignment(statement)
        if name in parameters:
            raise ValueError(f"the parameters cell sets {name} twice: keep one line")
        parameters[name] = Parameter(name, value, comments.get(statement.end_lineno or 0, ""))
    return parameters


def resolve(parameters: Mapping[str, Parameter], given: Mapping[str, object]) -> dict[str, object]:
    """Values to hand to the notebook: ``given`` after a check of names and types; text is parsed.

    Raises:
        ValueError: for a name that the notebook does not declare, or a value that is not of the default's type.
    """
    values: dict[str, object] = {}
    for name, value in given.items():
        if name not in parameters:
            close = difflib.get_close_matches(name, parameters, n=1)
            advice = f"did you mean {close[0]}?" if close else f"it has {', '.join(parameters) or 'none'}"
            raise ValueError(f"the notebook has no parameter {name}: {advice}")
        values[name] = _convert(parameters[name], value)
    return values


def unread_parameters(notebook: NotebookNode) -> dict[str, str]:
    """Declared names that have no effect, with the reason: never read by a later cell, or overwritten before.

    Raises:
        ValueError: if a code cell is not valid Python.
    """
    start = _parameters_index(notebook)
    pending = dict.fromkeys(declared_parameters(notebook))
    reasons: dict[str, str] = {}
    for index, cell in enumerate(notebook.cells):
        if index <= start or cell.cell_type != "code":
            continue
        for statement in _parse(cell.source, f"cell {index + 1}").body:
            read, written = _names(statement)
            for name in [name for name in pending if name in read | written]:
                del pending[name]
                if name not in read:
                    reasons[name] = f"cell {index + 1} overwrites it before anything reads it"
    return reasons | dict.fromkeys(pending, "no later cell reads it")


def _parameters_index(notebook: NotebookNode) -> int:
    tagged = [
        index
        for index, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and TAG in cell.metadata.get("tags", [])
    ]
    if len(tagged) != 1:
        raise ValueError(f"the notebook has {len(tagged)} code cells tagged '{TAG}': tag exactly one")
    return tagged[0]


def _parse(source: str, where: str) -> ast.Module:
    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError as error:
        raise ValueError(f"{where} is not valid Python: {error.msg} in line {error.lineno}") from None


def _names(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Names that a statement reads, and names that it writes. All words behind an IPython magic count as read."""
    read: set[str] = set()
    written: set[str] = set()
    for node in ast.walk(statement):
        match node:
            case ast.AugAssign(target=ast.Name(id=name)) | ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name):
                written.add(name)
            case ast.Call(func=ast.Attribute(attr="run_line_magic" | "run_cell_magic"), args=arguments):
                texts = [part.value for part in arguments if isinstance(part, ast.Constant)]
                read.update(word for text in texts for word in re.findall(r"\w+", str(text)))
    return read, written


def _assignment(statement: ast.stmt) -> tuple[str, bool | int | float | str | list[object]]:
    """Name and value of ``NAME = literal``."""
    line = ast.unparse(statement)
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=expression):
            pass
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as expression):
            pass
        case _:
            raise ValueError(f"the parameters cell may hold lines such as SEED = 0 only, not {line!r}")
    try:
        value = ast.literal_eval(expression)
    except ValueError:
        raise ValueError(f"the default in {line!r} must be a plain number, text, truth value or list") from None
    if not isinstance(value, TYPES):
        raise ValueError(f"the default in {line!r} must be a plain number, text, truth value or list")
    return name, value


def _comments_by_line(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def _convert(parameter: Parameter, value: object) -> object:
    wanted = type(parameter.default)
    if isinstance(value, str) and wanted is not str:
        with suppress(ValueError, SyntaxError):  # what is no literal stays a text, and the check below refuses it
            value = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise ValueError(f"parameter {parameter.name} is of type {wanted.__name__}, got {value!r}")
    return value
