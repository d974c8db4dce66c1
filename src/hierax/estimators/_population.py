"""Norm bounds tuned while networks train: a population of networks, each under bounds of its own.

At every milestone the networks that are worst on the validation rows go on as copies of the best ones, under bounds
moved at random (population based training: Jaderberg et al., arXiv:1711.09846). No derivative of the hyper-objective is
taken, and nothing is proved: the certificate retrains networks around the bounds that were found.
"""

import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from hierax._base.threads import one_blas_thread
from hierax.estimators._network import Adam, Networks, Plan, losses, trained
from hierax.estimators._parts import Parts

MEMBERS = 8
FACTORS = np.geomspace(0.25, 8.0, MEMBERS)  # first bounds, in units of the norms of the network before training
BOUND_RANGE = (0.05, 40.0)  # smallest and largest bounds, in the same units
REPLACED_MEMBERS = 2  # members that go at every milestone
LOG_BOUND_DEVIATION = 0.3  # standard deviation of the logarithm of a bound that is moved
MILESTONES = 20
EXPLORED_SHARE = 0.6  # share of the milestones at which members are replaced


class Tuned(NamedTuple):
    """How a population ended.

    Attributes:
        bounds: of the best member.
        box: smallest and largest bounds.
        networks: the best member's, one per fold.
        history: per milestone: validation and training loss and the bounds of the member that is best there.
        falling: what the best validation loss fell over the last milestone, as a share of it.
    """

    bounds: Float[np.ndarray, "2"]
    box: tuple[np.ndarray, np.ndarray]
    networks: Networks
    history: dict[str, np.ndarray]
    falling: float


def shares_of(counts: Float[np.ndarray, " n"], masks: np.ndarray) -> Float[np.ndarray, "folds n"]:
    """What each row counts in every fold: shares that add up to one."""
    found = masks * counts
    return found / found.sum(axis=1, keepdims=True)


def tuned_bounds(
    rows: Float[np.ndarray, "n d"],
    codes: Int[np.ndarray, " n"],
    counts: Float[np.ndarray, " n"],
    parts: Parts,
    network: Networks,
    plan: Plan,
    rng: np.random.RandomState,
) -> Tuned:
    """The bounds under which the network, trained by the plan, ends with the lowest validation loss."""
    with one_blas_thread:
        return _tuned(rows, codes, counts, parts, network, plan, rng)


def _tuned(
    rows: np.ndarray,
    codes: np.ndarray,
    counts: np.ndarray,
    parts: Parts,
    network: Networks,
    plan: Plan,
    rng: np.random.RandomState,
) -> Tuned:
    folds = len(parts.train)
    unit = network.norms()[0]
    low, high = BOUND_RANGE[0] * unit, BOUND_RANGE[1] * unit
    bounds = FACTORS[:, None] * unit
    counted, judged = (np.tile(shares_of(counts, masks), (MEMBERS, 1)) for masks in parts)
    networks = network.taken(np.zeros(MEMBERS * folds, int)).within(np.repeat(bounds, folds, axis=0))
    adam = Adam.of(networks)
    stops = np.linspace(0, len(plan.batches), MILESTONES + 1).astype(int)
    records = []
    for milestone, (begin, end) in enumerate(itertools.pairwise(stops)):
        each = np.repeat(bounds, folds, axis=0)
        networks, adam = trained(networks, adam, plan, range(begin, end), rows, codes, counted, each)
        worth = losses(networks, rows, codes, judged).reshape(MEMBERS, folds).mean(axis=1)
        order = np.argsort(np.where(np.isfinite(worth), worth, np.inf), kind="stable")
        best = int(order[0])
        own = losses(networks, rows, codes, counted).reshape(MEMBERS, folds).mean(axis=1)
        records.append((worth[best], own[best], *bounds[best]))
        if milestone + 1 < EXPLORED_SHARE * MILESTONES:
            members = np.arange(MEMBERS)
            members[order[-REPLACED_MEMBERS:]] = order[:REPLACED_MEMBERS]
            which = (members[:, None] * folds + np.arange(folds)).ravel()
            networks, adam, bounds = networks.taken(which), adam.taken(which), bounds[members]
            gone = order[-REPLACED_MEMBERS:]
            bounds[gone] = np.clip(
                bounds[gone] * np.exp(LOG_BOUND_DEVIATION * rng.normal(size=(REPLACED_MEMBERS, 2))), low, high
            )
            networks = networks.within(np.repeat(bounds, folds, axis=0))
    upper, lower, first, second = (np.array(column) for column in zip(*records, strict=True))
    history = {"upper": upper, "lower": lower, "bounds": np.stack([first, second], axis=1)}
    falling = float((upper[-2] - upper[-1]) / max(abs(upper[-1]), 1e-12))
    found = networks.taken(best * folds + np.arange(folds))
    return Tuned(bounds[best], (low, high), found, history, falling)
