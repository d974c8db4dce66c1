"""The bilevel problem of a linear classifier, with derivatives by hand: what `certificate_` is computed from.

The functions are those of `hierax.estimators._statement`. Nothing is compiled, and linear systems are no larger than a
model.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hierax._engine.by_hand import HandMade
from hierax._lower.active_set import Slopes
from hierax._lower.blocks import Blocks, Stack
from hierax.estimators._margins import LOSSES
from hierax.estimators._statement import Fold, Kept, folds_of
from hierax.estimators._tuning import Weighing


class _Place(NamedTuple):
    """Where the planes, the slacks and the constraints of a fold stand."""

    fold: Fold
    planes: slice
    slacks: slice
    rows: slice

    def planes_in(self, y: np.ndarray) -> np.ndarray:
        """(classes, d)."""
        return y[self.planes].reshape(len(self.fold.train), -1)

    def slacks_in(self, y: np.ndarray) -> np.ndarray:
        """(classes, n)."""
        return y[self.slacks].reshape(self.fold.train.shape[:2])


class LinearByHand(HandMade):
    """x: the logarithm of the cost, an entry per training row; y: per fold the planes and, with the hinge, slack."""

    def __init__(self, kept: Kept) -> None:
        self._weighing, self._hinge = Weighing(*kept["weighing"]), kept["loss"] == "squared_hinge"
        self._loss, self._judge = LOSSES[kept["loss"]], LOSSES[kept["judge"]]
        self._prices = kept["counts"][kept["train"].any(axis=0)] / kept["judged"]
        self._places = list(self._placed(folds_of(kept)))
        self._ny, self._rows = self._places[-1].slacks.stop, self._places[-1].rows.stop

    def _placed(self, folds: list[Fold]) -> Iterator[_Place]:
        first = row = 0
        for fold in folds:
            classes, count, width = fold.train.shape
            slack = first + classes * width
            end = slack + classes * count * self._hinge
            yield _Place(fold, slice(first, slack), slice(slack, end), slice(row, row + end - slack))
            first, row = end, row + end - slack

    def _weights(self, fold: Fold, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the rows of a fold count, and the derivatives in their entries of x; that in x_0 is what they count."""
        per = fold.counts * np.exp(x[0])
        s = per * self._weighing.weights(x[1:][fold.entries])
        return s, s if self._weighing.scale == "log" else per

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        """G, the gradients of L = G + mu.rows, and the rows."""
        value, along_x, gradient, rows = 0.0, np.zeros_like(x), np.zeros_like(y), np.zeros(self._rows)
        for place in self._places:
            fold, u, (s, steep) = place.fold, place.planes_in(y), self._weights(place.fold, x)
            margins = (fold.train @ u[:, :, None])[:, :, 0]
            if self._hinge:
                slack, pull = place.slacks_in(y), mu[place.rows].reshape(margins.shape)
                losses, pushes = slack**2, -pull
                gradient[place.slacks] = (2.0 * s * slack - pull).ravel()
                rows[place.rows] = (1.0 - margins - slack).ravel()
            else:
                losses, pushes = self._loss.value(margins), s * self._loss.slope(margins)
            gradient[place.planes] = (u + (pushes[:, None] @ fold.train)[:, 0]).ravel()
            every = losses.sum(axis=0)
            value += 0.5 * float(np.sum(u**2)) + float(s @ every)
            along_x[0] += s @ every
            along_x[1:][fold.entries] += steep * every
        return Slopes(value, along_x, gradient, rows)

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Blocks:
        """The Jacobian of the rows in y, and the Hessian of L in y."""
        del mu
        stacks = []
        for place in self._places:
            train, (s, _) = place.fold.train, self._weights(place.fold, x)
            classes, count, width = train.shape
            if self._hinge:
                ones = np.ones((classes, count))
                parts = np.tile(np.eye(width), (classes, 1, 1)), 2.0 * s * ones, -train, -ones
            else:
                bent = s * self._loss.curvature((train @ place.planes_in(y)[:, :, None])[:, :, 0])
                hessian = np.eye(width) + (train * bent[:, :, None]).mT @ train
                parts = hessian, np.zeros((classes, 0)), train[:, :0], np.zeros((classes, 0))
            stacks.append(Stack(place.planes, place.slacks, place.rows, *parts))
        return Blocks(stacks, self._ny, self._rows)

    def mixed(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """The derivatives in x of the gradient of L in y, then of the rows."""
        del mu
        found = np.zeros((self._ny + self._rows, x.size))
        for place in self._places:
            train, entries, (s, steep) = place.fold.train, 1 + place.fold.entries, self._weights(place.fold, x)
            if self._hinge:
                slack, at = place.slacks_in(y), np.arange(place.slacks.start, place.slacks.stop)
                found[at, 0] = (2.0 * s * slack).ravel()
                found[at, np.tile(entries, len(slack))] = (2.0 * steep * slack).ravel()
            else:
                slope = self._loss.slope((train @ place.planes_in(y)[:, :, None])[:, :, 0])
                pushes = (train * slope[:, :, None]).mT.reshape(-1, s.size)
                found[place.planes, 0] = pushes @ s
                found[place.planes, entries] = pushes * steep
        return found

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """F and its derivatives in x and in y."""
        price, raised = self._weighing.price(x[1:])
        value, in_y = float(self._prices @ price), np.zeros_like(y)
        for place in self._places:
            tests, shares = place.fold.tests, place.fold.shares
            margins = (tests @ place.planes_in(y)[:, :, None])[:, :, 0]
            value += float(np.sum(self._judge.value(margins) @ shares))
            in_y[place.planes] = ((shares * self._judge.slope(margins))[:, None] @ tests).ravel()
        return value, np.concatenate([[0.0], self._prices * raised]), in_y

    def pulled(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, adjoints: np.ndarray) -> np.ndarray:
        """Each of the adjoints (a, b) times the derivatives in x of (the gradient of L in y, the rows)."""
        del mu
        found, lines = np.zeros((len(adjoints), x.size)), len(adjoints)
        for place in self._places:
            train, (s, steep) = place.fold.train, self._weights(place.fold, x)
            if self._hinge:
                pulls = adjoints[:, place.slacks].reshape(lines, *train.shape[:2]) * (2.0 * place.slacks_in(y))
            else:
                planes = adjoints[:, place.planes].reshape(lines, len(train), -1, 1)
                pulls = (train @ planes)[:, :, :, 0] * self._loss.slope(
                    (train @ place.planes_in(y)[:, :, None])[:, :, 0]
                )
            every = pulls.sum(axis=1)
            found[:, 0] += every @ s
            found[:, 1 + place.fold.entries] += every * steep
        return found
