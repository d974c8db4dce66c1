"""The worked examples run, at small size, and do what they say."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "gallery" / "integrations"

pytestmark = pytest.mark.usefixtures("promotion")  # the examples are written as users write, with NumPy's broadcasting


def example(name: str):
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # modules as variables, smaller: tests/test_trees_and_modules.py
def test_an_equinox_module_is_trained_and_given_back(capsys):
    module = example("equinox_module")
    sol = module.main(steps=200)
    assert type(sol.y).__name__ == "MLP"
    assert "mean square on new data" in capsys.readouterr().out
    before = module.mean_square(module.eqx.nn.MLP(1, 1, 32, 1, key=module.jax.random.key(0)), module.make_data(200, 2))
    assert float(module.mean_square(sol.y, module.make_data(200, 2))) < float(before)


def test_an_optax_chain_moves_x_and_y():
    sol = example("optax_outer").main(steps=1500)
    assert sol.x[1] > sol.x[0] + 1.0  # what does not matter is penalised more


class LoaderStandIn:
    """DataLoader's protocol: iterating yields lists of tensor-like batches, and iterating again starts over."""

    class Tensor:
        def __init__(self, values: np.ndarray) -> None:
            self.values = values

        def __array__(self, dtype=None, copy=None) -> np.ndarray:
            return self.values if dtype is None else self.values.astype(dtype)

    def __init__(self, data: tuple[np.ndarray, np.ndarray], batch: int) -> None:
        self.data, self.batch, self.rng = data, batch, np.random.default_rng(0)

    def __iter__(self):
        order = self.rng.permutation(len(self.data[0]))
        for first in range(0, len(order) - self.batch + 1, self.batch):
            rows = order[first : first + self.batch]
            yield [self.Tensor(part[rows]) for part in self.data]


def test_batches_of_a_loader():
    module = example("torch_loader")
    loaders = [LoaderStandIn(module.make_data(128, seed), module.BATCH) for seed in (0, 1)]
    sol = module.main(*loaders, steps=300)
    np.testing.assert_allclose(sol.y, np.arange(module.FEATURES), atol=0.3)
    assert float(sol.x) > 5.0  # nothing is gained beyond the norm of the true coefficients, 5.5, nor lost


def test_batches_of_torch():
    pytest.importorskip("torch", reason="torch is in no extra of hierax; the loader's protocol is tested above")
    from torch import from_numpy
    from torch.utils.data import DataLoader, TensorDataset

    module = example("torch_loader")
    parts = [TensorDataset(*map(from_numpy, module.make_data(128, seed))) for seed in (0, 1)]
    sol = module.main(*(DataLoader(part, batch_size=module.BATCH, drop_last=True) for part in parts), steps=300)
    np.testing.assert_allclose(sol.y, np.arange(module.FEATURES), atol=0.3)
    assert float(sol.x) > 5.0  # nothing is gained beyond the norm of the true coefficients, 5.5, nor lost


def test_the_typed_example_is_certified(capsys):
    module = example("typed")
    sol = module.main()
    # Where nothing is too heavy, every price is where its own derivative, c + w - 2.1 p, is zero.
    np.testing.assert_allclose(sol.x, (module.WORTH + module.COST) / 2.1, atol=1e-4)
    assert "certificate: yes" in capsys.readouterr().out


@pytest.mark.slow  # a portfolio from CVXPY, smaller: tests/test_cvxpy_level.py
def test_a_portfolio_of_cvxpy_is_certified(capsys):
    pytest.importorskip("cvxpy", reason="the extra cvxpy is not installed")
    module = example("cvxpy_portfolio")
    sol, solved = module.main()
    assert sol.certificate.ok(1e-4) and solved.status == "optimal"
    assert "in CVXPY: optimal" in capsys.readouterr().out
    weights = solved.variables()[0].value.copy()
    solved.solve(solver="CLARABEL")  # by CVXPY itself, at the parameters that were chosen
    np.testing.assert_allclose(weights, solved.variables()[0].value, atol=1e-4)
