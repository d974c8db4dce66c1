"""What is claimed and what is found do not depend on units: F -> aF + b, G -> aG + b, x -> Dx, y -> Dy, rows -> D rows.

Twenty fixed problems of several kinds are solved in plain units and in random others. Units are arrays, so that every
problem of one form runs the same compiled programs.
"""

import dataclasses
import functools
import zlib

import numpy as np
import pytest

import hierax as hx
from hierax_lab.bench.fuzz_case import Case, as_problem, to_core, to_user, upper_value
from hierax_lab.bench.fuzz_draw import draw_case, draw_units
from hierax_lab.bench.fuzz_forms import FORMS
from hierax_lab.bench.fuzz_grid import landscape
from hierax_lab.bench.fuzz_judge import planted_scale

SECONDS = 20.0  # a limit that no problem here comes near
DECADES = 6.0
TOL = 1e-4
NEAR_VALUE, NEAR_X = 1e-3, 0.02  # part of the scale of F, and of x in units of which it is about one

# Form, twist and seed of the draw. The first three are the quick part.
PROBLEMS = [
    ("rows", "plain", 0),
    ("rows", "false_row", 1),
    ("disc", "plain", 0),
    ("tree", "plain", 1),
    ("planted equalities", "plain", 0),
    ("bare", "plain", 0),
    ("bare", "unbounded_lower", 1),
    ("bare", "unbounded_upper", 2),
    ("rows", "duplicate", 2),
    ("disc", "contradiction", 1),
    ("planted equalities", "duplicate_equality", 1),
    ("wells", "plain", 0),
    ("wells", "plain", 1),
    ("two equalities", "plain", 0),
    ("two equalities", "false_equality", 1),
    ("round", "plain", 0),
    ("upper rows", "plain", 0),
    ("ball below", "plain", 0),
    ("simplices", "plain", 0),
    ("planted QP", "plain", 0),
]


def fixed(name: str, twist: str, seed: int) -> Case:
    """A problem in plain units, without offsets."""
    form = next(form for form in FORMS if form.name == name)
    case = draw_case(form, twist, np.random.default_rng([seed, 11]), 0.0)
    bare = dataclasses.replace(case.units, upper=np.array([1.0, 0.0]), lower=np.array([1.0, 0.0]))
    return dataclasses.replace(case, units=bare)


def in_other_units(case: Case, change: int) -> Case:
    """The same problem; shifts of x and y are no units and stay."""
    rng = np.random.default_rng([zlib.crc32(case.form.name.encode()), change])
    units = draw_units(case.form, rng, DECADES)
    return dataclasses.replace(
        case, units=dataclasses.replace(units, x_shift=case.units.x_shift, y_shift=case.units.y_shift)
    )


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is claimed, and the point in core units."""

    status: str
    certified: bool
    x: np.ndarray
    upper: float


def solved(case: Case) -> Answer:
    solution = hx.solve(as_problem(case), *to_user(case, *case.start), seconds=SECONDS, throw=False)
    x, y = to_core(case, solution.x, solution.y)
    upper = float(upper_value(case.form, case.numbers, x, y))
    return Answer(solution.status.name, solution.certificate.ok(TOL), x, upper)


@functools.cache
def in_plain_units(problem: int) -> tuple[Case, Answer, float]:
    """The problem, its answer, and the scale of F."""
    case = fixed(*PROBLEMS[problem])
    scale = 1.0
    if case.truth == "solvable":
        scale = landscape(case).scale if case.planted is None else planted_scale(case, 0.0)
    return case, solved(case), scale


def check(problem: int, changes: range) -> None:
    case, plain, scale = in_plain_units(problem)
    wrong = []
    for change in changes:
        other = solved(in_other_units(case, change))
        if (other.status, other.certified) != (plain.status, plain.certified):
            wrong.append(f"units {change}: {other.status}, ok {other.certified}")
        elif case.truth == "solvable":
            off = abs(other.upper - plain.upper) / scale, float(np.abs(other.x - plain.x).max())
            if not (off[0] <= NEAR_VALUE and off[1] <= NEAR_X):
                wrong.append(f"units {change}: F off by {off[0]:.2g} of its scale, x by {off[1]:.2g}")
    assert not wrong, f"in plain units {plain.status}, ok {plain.certified}; {'; '.join(wrong)}"


@pytest.mark.parametrize("problem", range(3), ids=lambda i: "-".join(map(str, PROBLEMS[i])))
def test_claims_and_answers_do_not_depend_on_units(problem):
    check(problem, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("problem", range(len(PROBLEMS)), ids=lambda i: "-".join(map(str, PROBLEMS[i])))
def test_claims_and_answers_do_not_depend_on_many_units(problem):
    check(problem, range(20))
