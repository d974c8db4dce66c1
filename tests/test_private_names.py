"""Tests go through the public surface: only files of unit tests, which are listed here, know private modules."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRIVATE = re.compile(r"\bhierax\.((?:[a-z]\w*\.)*_[a-z]\w*)")  # "_run" of hierax._run.solution

# What may change without a word to users, by the file that tests it in itself. Everything else is tested by what users
# have: hierax, hierax.extend, hierax.problems, hierax.estimators, the commands, files, messages.
UNIT_TESTS: dict[str, set[str]] = {
    "lab/tests/test_coverage.py": {"_judge"},
    "tests/test_active_set.py": {"_engine", "_lower"},
    "tests/test_adjoint_systems.py": {"_math"},
    "tests/test_answers.py": {"_base", "_run"},
    "tests/test_by_hand.py": {"_lower", "estimators._linear"},
    "tests/test_central_path.py": {"_auto", "_engine", "_lower"},
    "tests/test_checkpoint_parts.py": {"_base", "_run"},
    "tests/test_columns.py": {"_engine"},
    "tests/test_contradiction.py": {"_auto", "_base", "_engine"},
    "tests/test_directions.py": {"_math", "_methods"},
    "tests/test_envelope.py": {"_math"},
    "tests/test_faults.py": {"_base", "_run"},
    "tests/test_feeder.py": {"_compile", "_problem", "_run"},
    "tests/test_hypergradient.py": {"_math", "_problem"},
    "tests/test_intervals.py": {"_base", "_engine"},
    "tests/test_judge_retraining.py": {"_auto", "_base", "_engine", "_judge", "_run"},
    "tests/test_lagrangian.py": {"_math"},
    "tests/test_linear_solvers.py": {"_engine", "_lower"},
    "tests/test_lower_solvers.py": {"_compile"},
    "tests/test_lvhba.py": {"_math"},
    "tests/test_much_data.py": {"_auto", "_run"},
    "tests/test_pace.py": {"_math", "_methods"},
    "tests/test_parts_of_auto.py": {"_auto", "_base", "_engine", "_math", "_run"},
    "tests/test_parts_of_base.py": {"_base"},
    "tests/test_parts_of_bridges.py": {"_bridges"},
    "tests/test_parts_of_compile.py": {"_compile"},
    "tests/test_parts_of_judge.py": {"_compile", "_engine", "_judge"},
    "tests/test_parts_of_lower.py": {"_lower", "_math", "_methods", "_problem", "_engine"},
    "tests/test_parts_of_math.py": {"_compile", "_math", "_methods"},
    "tests/test_parts_of_methods.py": {"_methods"},
    "tests/test_parts_of_run.py": {"_run"},
    "tests/test_penalty.py": {"_math"},
    "tests/test_polish.py": {"_auto", "_engine"},
    "tests/test_program.py": {"_base", "_compile"},
    "tests/test_progress.py": {"_run"},
    "tests/test_sample_kinks.py": {"_base"},
    "tests/test_samples.py": {"_methods", "_problem"},
    "tests/test_scanning.py": {"_engine"},
    "tests/test_sets.py": {"_problem"},
    "tests/test_theory.py": {"_theory"},
    "tests/test_threads.py": {"_compile"},
}


def private_names(path: Path) -> set[str]:
    """The private packages that a file imports, or names in a text, as patches and scripts for other processes do."""
    tree = ast.parse(path.read_text("utf-8"))
    named: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named += [f"{alias.name}." for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "hierax":
            named += [f"hierax.{alias.name}." for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            named.append(f"{node.module}.")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != docstring(tree):
            named.append(node.value)
    return {match for name in named for match in re.findall(PRIVATE.pattern + r"\.", name)}


def docstring(tree: ast.Module) -> str | None:
    return ast.get_docstring(tree, clean=False)


def test_private_modules_are_known_to_unit_tests_alone() -> None:
    files = [*(ROOT / "tests").glob("*.py"), *(ROOT / "lab" / "tests").glob("*.py")]
    found = {path.relative_to(ROOT).as_posix(): private_names(path) for path in files if path != Path(__file__)}
    for name, private in sorted(found.items()):
        more = private - UNIT_TESTS.get(name, set())
        assert not more, (
            f"{name} uses private modules, hierax.{', hierax.'.join(sorted(more))}: test what a user can observe, or "
            "move the unit tests into a file that is named after what they test, and list it here."
        )
    known = {name: private for name, private in found.items() if private}
    assert known == UNIT_TESTS, "the list says more than the files do: take it out"


def test_unit_tests_say_so() -> None:
    for name in UNIT_TESTS:
        said = docstring(ast.parse((ROOT / name).read_text("utf-8"))) or ""
        assert re.search(r"[Uu]nit tests of hierax\.", said), f"{name}: the docstring needs 'Unit tests of hierax._x.y'"
