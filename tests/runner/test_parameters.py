"""Parameters: only declared names, only values of the right type, and each must have an effect."""

import pytest
from notebook_builder import notebook_of

from tfm_lab.runner.parameters import declared_parameters, resolve, unread_parameters

CELL = 'SEED = 0  # any number\nRATE = 0.5\nPROFILE = "fast"  # fast | full\nSOLUTIONS = False\nBUDGETS = [1, 2]'


def test_names_defaults_and_comments() -> None:
    parameters = declared_parameters(notebook_of(parameters=CELL))
    assert {name: item.default for name, item in parameters.items()} == {
        "SEED": 0,
        "RATE": 0.5,
        "PROFILE": "fast",
        "SOLUTIONS": False,
        "BUDGETS": [1, 2],
    }
    assert parameters["SEED"].help == "any number"
    assert parameters["PROFILE"].help == "fast | full"
    assert parameters["RATE"].help == ""


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("SEED = 0\nprint(SEED)", "only, not 'print"),
        ("SEED = BUDGET = 0", "only, not"),
        ("SEED = int(0)", "plain number"),
        ("SEED = None", "plain number"),
        ("SEED = 0\nSEED = 1", "twice"),
        ("SEED = ", "not valid Python"),
    ],
)
def test_a_parameters_cell_holds_plain_assignments(cell: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        declared_parameters(notebook_of(parameters=cell))


@pytest.mark.parametrize("tagged", [0, 2])
def test_exactly_one_cell_is_tagged(tagged: int) -> None:
    notebook = notebook_of("print(1)")
    for cell in notebook.cells[2:]:
        cell.metadata["tags"] = ["parameters"] if tagged else []
    with pytest.raises(ValueError, match=f"{tagged} code cells tagged 'parameters'"):
        declared_parameters(notebook)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("SEED", "32", 32),
        ("SEED", 32, 32),
        ("RATE", "2", 2.0),
        ("RATE", "1e-3", 1e-3),
        ("PROFILE", "32", "32"),
        ("SOLUTIONS", "true", True),
        ("SOLUTIONS", "False", False),
        ("BUDGETS", "[3, 4]", [3, 4]),
    ],
)
def test_text_becomes_the_type_of_the_default(name: str, given: object, value: object) -> None:
    resolved = resolve(declared_parameters(notebook_of(parameters=CELL)), {name: given})
    assert resolved == {name: value}
    assert type(resolved[name]) is type(value)


@pytest.mark.parametrize(
    ("name", "given"),
    [("SEED", "32.0"), ("SEED", "many"), ("SEED", True), ("SOLUTIONS", "1"), ("BUDGETS", "3"), ("PROFILE", 3)],
)
def test_another_type_is_refused(name: str, given: object) -> None:
    with pytest.raises(ValueError, match=f"parameter {name} is of type"):
        resolve(declared_parameters(notebook_of(parameters=CELL)), {name: given})


def test_a_mistyped_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"no parameter BUGDET: did you mean BUDGET\?"):
        resolve(declared_parameters(notebook_of()), {"BUGDET": 1})
    with pytest.raises(ValueError, match="no parameter TEMPERATURE: it has BUDGET"):
        resolve(declared_parameters(notebook_of()), {"TEMPERATURE": 1})


@pytest.mark.parametrize(
    "source",
    ["print(BUDGET)", "%time print(BUDGET)", "BUDGET = BUDGET + 1", "BUDGET += 1", "def grow():\n    return BUDGET"],
)
def test_a_parameter_that_is_read_has_an_effect(source: str) -> None:
    assert unread_parameters(notebook_of(source)) == {}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("print(1)", "no later cell reads it"),
        ('print("BUDGET")', "no later cell reads it"),
        ("BUDGET = 4\nprint(BUDGET)", "overwrites it"),
        ("for BUDGET in range(3):\n    pass", "overwrites it"),
    ],
)
def test_a_parameter_without_effect_is_found(source: str, reason: str) -> None:
    assert reason in unread_parameters(notebook_of(source))["BUDGET"]


def test_reading_before_the_parameters_cell_does_not_count() -> None:
    notebook = notebook_of("print(1)")
    notebook.cells[1].source += "\nprint(BUDGET)"
    assert list(unread_parameters(notebook)) == ["BUDGET"]
