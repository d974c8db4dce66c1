"""check: one finding per assumption; what fails is named, with the row and the point."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import TOY
from qp_family import PAIR, at, family

import hierax as hx
from hierax import check

FLAT = "strongly convex lower objective"


def failed(problem, x=2.0, y=(0.9, 0.9), **settings):
    return {finding.name: finding.text for finding in check(problem, x, at(*y), **settings).failures}


def test_a_sound_problem():
    findings = check(family(), 2.0, at(0.9, 0.9))
    assert findings.ok and findings.failures == []
    assert all(finding.holds for finding in findings.all)
    assert findings[FLAT].text == "curvatures of G in y between 1 and 1"
    assert findings["LICQ"].text == "2 active rows at y*(x0), independent"  # a row and the equality
    assert "Slater point                     holds" in str(findings)
    with pytest.raises(KeyError, match="no finding 'slater'; there are values and shapes"):
        findings["slater"]


def test_a_lower_objective_that_is_not_convex():
    found = failed(family(hessian=(1.0, -1.0), rows=[[0.0, 1.0], [0.0, -1.0]], level=(1.0, 1.0)))
    assert set(found) == {"convex lower objective", FLAT}
    assert found["convex lower objective"].startswith("G_yy has the eigenvalue -1 at x = ")


def test_a_lower_objective_that_is_flat():
    found = failed(family(hessian=(1.0, 0.0), push=(1.0, 0.0)))
    assert set(found) == {FLAT, "unique lower solution"}
    assert "add a small quadratic in y" in found[FLAT]
    assert found["unique lower solution"].startswith("the Lagrangian is flat along the active constraints at x0")


def test_a_flat_direction_that_the_constraints_hold_is_no_harm_to_uniqueness():
    assert set(failed(family(hessian=(1.0, 0.0)))) == {FLAT}  # y2 is pushed against its bound


def test_constraints_that_are_not_convex():
    found = failed(family(bend=(0.0, -0.1)))
    assert set(found) == {"convex constraints"}
    assert found["convex constraints"].startswith("constraints['rows'][1] is above its chord at x = ")


def test_equalities_that_are_not_affine():
    found = failed(family(bend_equal=0.1))
    assert set(found) == {"affine equalities"}
    assert found["affine equalities"].startswith("equalities[0] is not affine in y at x = ")


def test_no_slater_point():
    opposite = [[1.0, 0.0], [-1.0, 0.0]]
    found = failed(family(rows=opposite, level=(1.0, -1.0)))
    assert found["Slater point"].startswith("the feasible set has no interior at x = 2: constraints['rows'][")
    assert {"Slater point", "LICQ"} <= set(found)
    empty = check(family(rows=opposite, level=(-1.0, -1.0)), 2.0, at(0.9, 0.9))
    assert empty["Slater point"].text.startswith("the feasible set is empty at x = 2: constraints['rows'][")
    assert empty["solvable lower level"].text.startswith("infeasible: no y in Y satisfies the constraints")
    assert empty["LICQ"].holds is None and "not looked at" in empty["LICQ"].text
    assert "LICQ                             -" in str(empty)


def test_an_unbounded_lower_level():
    found = failed(family(hessian=(1.0, 0.0), push=(1.0, -1.0)))
    assert found["solvable lower level"].startswith("unbounded: the lower objective falls without limit")


def test_dependent_gradients():
    found = failed(family(rows=PAIR[[0, 0]], level=(1.0, 1.0)))
    assert found == {
        "LICQ": "the gradients of constraints['rows'][0], constraints['rows'][1] are dependent at y*(x0)",
    }


def test_a_weakly_active_row():
    found = failed(family(), x=1.0)
    assert found == {
        "strict complementarity": "constraints['rows'][0] active at y*(x0) with multiplier zero: y*(x) has a kink there"
    }


def test_values_that_are_not_finite():
    inside = dataclasses.replace(family(), lower=lambda x, y, xi: jnp.sum(y - jnp.log(y)))
    findings = check(inside, 2.0, np.zeros(3))
    assert [finding.name for finding in findings.all] == ["values and shapes"]
    assert findings.failures[0].text.startswith("lower, the gradient of lower not finite at x = 2")


def test_what_solve_refuses_is_a_finding():
    vector = dataclasses.replace(TOY.problem, upper=lambda x, y, zeta: jnp.stack([x, y]))
    (finding,) = check(vector, 1.0, 1.0).all
    assert finding.name == "values and shapes" and "must return a scalar" in finding.text
    (outside,) = check(TOY.problem, 5.0, 1.0).all
    assert "x0 lies outside Problem(x_set)" in outside.text


def test_wrong_calls():
    streamed = dataclasses.replace(TOY.problem, xi=hx.Stream([np.zeros((2, 2))]))
    for wrong, text in (
        (lambda: check(streamed, 1.0, 1.0), r"Problem\(xi\): a Stream is never seen as a whole"),
        (lambda: check(TOY.problem, 1.0, 1.0, points=0), "points=0: needs a whole number >= 1"),
        (lambda: check(None, 1.0, 1.0), "problem: needs a hx.Problem"),
    ):
        with pytest.raises(hx.InputError, match=text):
            wrong()


def test_without_x64():
    with jax.enable_x64(False):
        assert check(family(), np.float32(2.0), at(0.9, 0.9).astype(np.float32)).ok
        assert not jax.config.jax_enable_x64
