"""The solutions of notebook 09 are Triton that a GPU's compiler takes, not only the interpreter."""

from pathlib import Path

from compile_reports import compile_report

from tfm_lab.lessons.puzzles import PUZZLES


def test_the_solutions_of_the_puzzles_compile(tmp_path: Path) -> None:
    variants = compile_report("compile_puzzles.py", tmp_path)
    assert len(variants) == len(PUZZLES) + 1
    for name, usage in variants.items():
        assert usage["stack"] == usage["local"] == 0, f"{name} spills: {usage}"
