"""Which starts of a search ended at the same optimum, and how likely another start is to end somewhere new.

F alone does not tell: its unit is what it changes over the whole of X, and local optima of a function with small
valleys differ by far less. So ends are the same where F is equal to rounding, or where F and x are close.
"""

import numpy as np

from hierax._auto.candidates import Candidate
from hierax._auto.constants import AGREE, SAME_PLACE, SAME_VALUE

Optimum = list[Candidate]
"""The ends of those starts that arrived at it, the lowest first."""


def optima(candidates: list[Candidate]) -> list[Optimum]:
    """The ends of all starts with an accepted point, grouped, those with the lowest F first."""
    found: list[Optimum] = []
    for end in sorted(_ends(candidates).values(), key=lambda candidate: candidate.upper):
        for optimum in found:
            if any(_same(end, other) for other in optimum):
                optimum.append(end)
                break
        else:
            found.append([end])
    return found


def chance_of_more(found: list[Optimum]) -> float:
    """The chance that another start ends at an optimum that none has met, by Good and Turing.

    It is about the share of starts whose optimum no other start has met. Where ends differ in F, an optimum is a place:
    functions with symmetries have several with the same F, and the best of all may be the one not met yet. (Ends along
    a valley of equal F are then places of their own: rather too doubtful than too sure.)
    """
    ends = sum(map(len, found))
    met = [len(place) for optimum in found for place in _places(optimum)] if len(found) > 1 else [ends]
    return met.count(1) / ends if ends else 1.0


def most_left(found: list[Optimum]) -> float:
    """The chance that another start ends somewhere new, at most, with 95 % confidence, where every place was met again.

    Such a place has not been met by n starts, which a chance above 1 - 0.05^(1/n) would make unlikely: that three
    starts agree says little.
    """
    return float(1 - 0.05 ** (1 / sum(map(len, found))))


def _places(optimum: Optimum) -> list[Optimum]:
    """The ends at one optimum by where they are."""
    places: list[Optimum] = []
    for end in optimum:
        for place in places:
            if _near(end, place[0]):
                place.append(end)
                break
        else:
            places.append([end])
    return places


def _ends(candidates: list[Candidate]) -> dict[int, Candidate]:
    """The accepted point with the lowest F of every start."""
    ends: dict[int, Candidate] = {}
    for candidate in candidates:
        if candidate.accepted and (candidate.start not in ends or candidate.upper < ends[candidate.start].upper):
            ends[candidate.start] = candidate
    return ends


def _same(one: Candidate, other: Candidate) -> bool:
    apart, size = abs(one.upper - other.upper), 1 + abs(one.upper)
    return apart <= (AGREE if _near(one, other) else SAME_VALUE) * size


def _near(one: Candidate, other: Candidate) -> bool:
    return bool(np.max(np.abs(one.point.x - other.point.x), initial=0.0) <= SAME_PLACE)
