"""`python -m hierax_lab.speed.reference_bits [--write]`: do twelve calls still give the same numbers, bit for bit?

Five methods on two problems each, and two estimators. No clock ends any of them: the methods make a given number of
steps, the estimators end by their tolerance or their number of iterations. All data come from a seeded NumPy generator.
The calls run in two fresh processes, one after the other, which must agree in every bit. `--write` keeps the answers in
lab/results/reference_bits.json; without it they are compared with that file.

Exit status:
    0  every number is the one in the file
    1  a call differs (it is named, with its largest relative difference), or the two processes differ
    3  the file was made with other versions, or on another kind of machine: bits cannot be compared. The numbers agree
       within 1e-6; where they do not, the status is 1

Every process is compiled with XLA's default flags: XLA_FLAGS and JAX's own variables are taken out of its environment,
and BLAS gets one thread. `python -m hierax_lab.speed` does not run this module: it would overwrite the reference.
"""

import argparse
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hierax_lab.repository import RESULTS, ROOT

REFERENCE = RESULTS / "reference_bits.json"
SAME, DIFFERENT, OTHER_MACHINE = 0, 1, 3  # exit status
TOLERANCE = 1e-6  # of numbers from other versions or another kind of machine
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "equinox", "optax", "scikit-learn")
VECTOR_FEATURES = ("sse4", "avx", "fma", "f16c", "bmi", "amx", "asimd", "sve")  # what compilers choose code by
TIMES = ("seconds",)  # columns of a history that no two runs share

Answer = dict[str, np.ndarray]


# -- the calls ---------------------------------------------------------------------------------------------------------


def rows_problem() -> tuple[Any, Any, Any]:
    """Affine rows and an equality, both levels sampled from stored rows; with a start."""
    import jax.numpy as jnp

    import hierax as hx

    rng = np.random.default_rng(27)
    factor = rng.normal(size=(4, 4))
    hessian = factor @ factor.T / 4 + np.eye(4)
    coupling, linear = rng.normal(size=(4, 2)), rng.normal(size=4)
    normals, slopes, level = rng.normal(size=(3, 4)), rng.normal(size=(3, 2)), rng.uniform(0.1, 0.6, size=3)
    target_x, target_y = rng.normal(size=2), rng.normal(size=4)

    problem = hx.Problem(
        upper=lambda x, y, zeta: (
            0.5 * jnp.mean(jnp.sum((y - target_y - zeta) ** 2, axis=1)) + 0.5 * jnp.sum((x - target_x) ** 2)
        ),
        lower=lambda x, y, xi: 0.5 * y @ hessian @ y - (linear + coupling @ x + jnp.mean(xi, axis=0)) @ y,
        constraints=lambda x, y: normals @ y + slopes @ x - level,
        equalities=lambda x, y: y[0] + y[1] - x[0],
        x_set=hx.Box(-1.5, 1.5),
        zeta=hx.Finite(0.3 * rng.normal(size=(96, 4))),
        xi=hx.Finite(0.3 * rng.normal(size=(96, 4))),
    )
    return problem, np.zeros(2), np.zeros(4)


def ball_problem() -> tuple[Any, Any, Any]:
    """A nonlinear constraint and a row, trees as variables, nothing sampled; with a start."""
    import jax.numpy as jnp

    import hierax as hx

    rng = np.random.default_rng(28)
    weights, linear, normal = rng.uniform(0.5, 2.0, size=3), rng.normal(size=3), rng.normal(size=3)
    coupling, target = rng.normal(size=(3, 2)), 2.0 * rng.normal(size=3)

    def lower(x: Any, y: Any, xi: Any) -> Any:
        pull = linear + coupling @ x["price"]
        return 0.5 * jnp.sum(weights * y**2) - 4.0 * pull @ y + 0.1 * jnp.sum(jnp.cos(0.5 * y))

    problem = hx.Problem(
        upper=lambda x, y, zeta: 0.5 * jnp.sum((y - target) ** 2) + 0.1 * jnp.sum(x["price"] ** 2) + x["room"] ** 2,
        lower=lower,
        constraints=lambda x, y: {"ball": 0.5 * y @ y - 0.5 - x["room"], "row": normal @ y - 0.4},
        x_set={"price": hx.Box(-2.0, 2.0), "room": hx.Box(0.0, 2.0)},
    )
    return problem, {"price": np.array([0.3, -0.2]), "room": np.array(0.2)}, np.zeros(3)


PROBLEMS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {"rows": rows_problem, "ball": ball_problem}
STEPS = {"SALVF": 200, "SALVF_VR": 200, "BLOCC": 30, "GAM": 30, "LVHBA": 100}
RECORDS = 5  # of a history


def method_answer(method: str, problem: str) -> Answer:
    """x, y, multipliers and history after the method's steps, every unset number estimated by the method itself."""
    import hierax as hx

    stated, x0, y0 = PROBLEMS[problem]()
    steps = STEPS[method]
    sol = hx.solve(
        stated,
        x0,
        y0,
        getattr(hx, method)(),
        max_steps=steps,
        record_every=steps // RECORDS,
        seed=6,
        progress=False,
    )
    if sol.status.name != "max_steps":
        raise RuntimeError(f"{method} on {problem} did not make its {steps} steps: {sol.status.message}")
    history = {f"history {name}": column for name, column in sol.history.items() if name not in TIMES}
    multipliers = {
        "inequalities": sol.multipliers.inequalities,
        "equalities": sol.multipliers.equalities,
        "upper": sol.multipliers.upper,
    }
    return flat({"x": sol.x, "y": sol.y, "multipliers": multipliers}) | history


def svc_answer() -> Answer:
    """`BilevelSVC` on two classes: the cost and 60 weights, tuned on three folds."""
    from hierax.estimators import BilevelSVC

    features, labels, _ = noisy_classes(60, 2, 29)
    return fitted_answer(BilevelSVC(cv=3, max_iter=50, random_state=0), features, labels)


def cleaner_answer() -> Answer:
    """`HyperCleaner` on three classes, a third of the rows trusted."""
    from hierax.estimators import HyperCleaner

    features, labels, trusted = noisy_classes(90, 3, 30)
    return fitted_answer(HyperCleaner(max_iter=50, random_state=0), features, labels, trusted=trusted)


def noisy_classes(rows: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features around a centre per class, labels of which every fifth is wrong, and a third of the right rows."""
    rng = np.random.default_rng(seed)
    truth = np.arange(rows) % classes
    features = 1.5 * rng.normal(size=(classes, 3))[truth] + rng.normal(size=(rows, 3))
    wrong = rng.permutation(rows) < rows // 5
    return features, np.where(wrong, (truth + 1) % classes, truth), ~wrong & (rng.permutation(rows) < rows // 3)


def fitted_answer(model: Any, features: np.ndarray, labels: np.ndarray, **given: Any) -> Answer:
    """Hyper-parameters, coefficients and history of a fit; whether it converged is no matter here."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features, labels, **given)
    history = {f"history {name}": column for name, column in model.history_.items()}
    return flat({"hyperparams": model.hyperparams_, "coef": model.coef_, "intercept": model.intercept_}) | history


CALLS: dict[str, Callable[[], Answer]] = {
    **{f"{m} {p}": functools.partial(method_answer, m, p) for m in STEPS for p in PROBLEMS},
    "BilevelSVC": svc_answer,
    "HyperCleaner": cleaner_answer,
}


# -- what is kept of them ----------------------------------------------------------------------------------------------


def flat(tree: Mapping[str, Any]) -> Answer:
    """The arrays of nested dictionaries, by the names on the way to them; what is None is left out."""
    found: Answer = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= {f"{name} {inner}": array for inner, array in flat(value).items()}
        elif value is not None:
            found[name] = np.asarray(value)
    return found


def digest(array: np.ndarray) -> str:
    """Hash of the type, the shape and the bytes (little-endian, by rows)."""
    array = np.asarray(array)
    plain = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<")))
    return hashlib.sha256(f"{array.dtype.name} {array.shape} ".encode() + plain.tobytes()).hexdigest()


def record(answer: Answer) -> dict[str, dict[str, Any]]:
    """For each array: its hash, and its numbers as the shortest decimals that are read back to the same bits."""
    return {
        name: {
            "sha256": digest(array),
            "values": [value if math.isfinite(value) else str(value) for value in array.ravel().tolist()],
        }
        for name, array in answer.items()
    }


def kind_of_machine() -> dict[str, Any]:
    """All that bits depend on: versions, processor, its vector instructions, BLAS, and the flags of XLA."""
    import scipy.linalg  # noqa: F401  its BLAS is the one that jaxlib calls, too
    from threadpoolctl import threadpool_info

    blas = sorted(
        f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')} threads={pool['num_threads']}"
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    )
    return {
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in PACKAGES},
        "system": platform.system(),
        "processor": platform.machine(),
        "vector instructions": vector_instructions(),
        "cores": os.cpu_count(),
        "blas": blas,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def vector_instructions() -> str:
    """Those that Linux reports of the processor; elsewhere the name of the processor has to do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    flags = next((line.split(":")[1].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return " ".join(sorted(flag for flag in flags if flag.startswith(VECTOR_FEATURES)))


def compute() -> dict[str, Any]:
    """All answers, and the kind of machine, in this process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    calls = {}
    for name, call in CALLS.items():
        calls[name] = record(call())
        print(f"  {name}", file=sys.stderr, flush=True)
    return {"machine": kind_of_machine(), "calls": calls}


def in_fresh_process() -> dict[str, Any]:
    """The same, computed by a new process with XLA's default flags and no kept programs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_", "HIERAX_"))}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "hierax_lab.speed.reference_bits", "--compute"]
    done = subprocess.run(
        command, cwd=ROOT, env=kept | threads | {"JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


# -- comparing ---------------------------------------------------------------------------------------------------------


def relative_difference(first: list[Any], second: list[Any]) -> float:
    """Largest difference of two arrays, relative to their largest entry or to 1 where all are smaller.

    The problems are of size one: a residual of 1e-12 that became 2e-12 differs by 1e-12, not by a factor. Infinite
    where one of them has another length, or is not finite where the other is.
    """
    if len(first) != len(second):
        return math.inf
    if not first:
        return 0.0
    a, b = np.asarray(first, float), np.asarray(second, float)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    a, b = a[finite], b[finite]
    return float(np.max(np.abs(a - b), initial=0.0) / max(1.0, np.max(np.abs([a, b]), initial=0.0)))


def differences(expected: dict[str, Any], found: dict[str, Any], tolerance: float | None = None) -> dict[str, str]:
    """By the name of the call: what differs. `tolerance` None: every bit counts."""
    said = {}
    for name in [*expected, *(name for name in found if name not in expected)]:
        if name not in expected or name not in found:
            said[name] = "not computed any more" if name in expected else "not in the reference"
            continue
        before, now = expected[name], found[name]
        other = {}
        for array in [*before, *(array for array in now if array not in before)]:
            if array not in before or array not in now:
                other[array] = math.inf
            elif tolerance is None and before[array]["sha256"] != now[array]["sha256"]:
                other[array] = relative_difference(before[array]["values"], now[array]["values"])
            elif tolerance is not None:
                size = relative_difference(before[array]["values"], now[array]["values"])
                other |= {array: size} if size > tolerance else {}
        if other:
            worst = max(other, key=other.__getitem__)
            said[name] = (
                f"{len(other)} of {len(before)} arrays differ; largest relative difference {other[worst]:.2g}, {worst}"
            )
    return said


def verdict(reference: dict[str, Any], found: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit status of a comparison with the reference, and what to print."""
    machines = reference["machine"], found["machine"]
    changed = [name for name in {**machines[0], **machines[1]} if machines[0].get(name) != machines[1].get(name)]
    said = differences(reference["calls"], found["calls"], TOLERANCE if changed else None)
    lines = [f"{name}: {what}" for name, what in said.items()]
    if not changed:
        return (DIFFERENT if said else SAME), lines or [f"all {len(found['calls'])} calls agree, bit for bit"]
    was = ", ".join(f"{name} {machines[0].get(name)} (here {machines[1].get(name)})" for name in changed)
    lines.insert(
        0, f"Bits cannot be compared: the reference was made with {was}. Compared within {TOLERANCE:g} instead."
    )
    if said:
        return DIFFERENT, lines
    return OTHER_MACHINE, [*lines, f"all {len(found['calls'])} calls agree within {TOLERANCE:g}"]


def source_commit() -> str:
    """The last commit of src/hierax, marked where files there are changed; empty where git does not know."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words, "--", "src/hierax"], cwd=ROOT, capture_output=True, text=True).stdout

    return git("log", "-1", "--format=%h").strip() + (" with changes" if git("status", "--porcelain").strip() else "")


def main() -> int:
    """Compute twice, compare both, then write or compare with the reference."""
    parser = argparse.ArgumentParser(description="Compare twelve calls with their reference, bit for bit.")
    parser.add_argument("--write", action="store_true", help="keep the answers as the new reference")
    parser.add_argument("--compute", action="store_true", help=argparse.SUPPRESS)  # of a fresh process
    asked = parser.parse_args()
    if asked.compute:
        json.dump(compute(), sys.stdout)
        return SAME
    first, second = in_fresh_process(), in_fresh_process()
    unequal = differences(first["calls"], second["calls"])
    if unequal:
        print("Two fresh processes do not agree:", *(f"{name}: {what}" for name, what in unequal.items()), sep="\n  ")
        return DIFFERENT
    print(f"two fresh processes agree in all {len(first['calls'])} calls, bit for bit")
    if asked.write:
        REFERENCE.write_text(as_text({"source": source_commit(), **first}))
        return SAME
    if not REFERENCE.exists():
        print(f"there is no reference, {REFERENCE.relative_to(ROOT)}: make one with --write")
        return DIFFERENT
    status, lines = verdict(json.loads(REFERENCE.read_text()), first)
    print(*lines, sep="\n")
    return status


def as_text(kept: dict[str, Any]) -> str:
    """JSON with a line per array."""
    calls = [
        f"  {json.dumps(name)}: {{\n" + ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in arrays.items())
        for name, arrays in kept["calls"].items()
    ]
    rest = json.dumps({name: value for name, value in kept.items() if name != "calls"}, indent=1)
    return rest[:-2] + ',\n "calls": {\n' + "\n  },\n".join(calls) + "\n  }\n }\n}\n"


if __name__ == "__main__":
    sys.exit(main())
