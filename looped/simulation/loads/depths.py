"""How many loops simulated tokens run: made-up families with known statistics, or recorded depths.

A family fixes the distribution of a token's depth and how depths are correlated. Behind every token
stands a standard normal value u = sqrt(h) r + sqrt(1 - h) z: r is drawn once a request, z follows
z' = a z + sqrt(1 - a^2) e from token to token. The depth is the quantile of u in the family's
distribution, so its mean is exact in expectation; h is the share of variance that lies between
requests, and u of neighbouring tokens is correlated by h + (1 - h) a, their depths by a little
less. What a family draws for a request depends on the seed and the request's index alone.

The means 2.25, 2.46 and 2.58 are those that the three families were asked to have; h and a are
round numbers, not measurements. Recorded depths are the thing where they exist.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import comb, sqrt
from random import Random
from statistics import NormalDist
from typing import Protocol

from looped.errors import UsageError

FIRST_TOKEN = 1
"""Tokens of a request that come out of its prompt, at full depth."""


class DepthSource(Protocol):
    """Loops of every output token of a request."""

    def depths(self, index: int, num_tokens: int) -> tuple[int, ...]:
        """Depths, 1-based, of so many tokens of request `index`; the first is P."""


@dataclass(frozen=True)
class FullDepth:
    """No token exits early."""

    num_planes: int

    def depths(self, index: int, num_tokens: int) -> tuple[int, ...]:
        return (self.num_planes,) * num_tokens


@dataclass(frozen=True)
class DepthFamily:
    """Depths that are drawn; see the module."""

    name: str
    probabilities: tuple[float, ...]
    """Of the depths 1 to P; they add up to 1."""
    seed: int = 0
    heterogeneity: float = 0.25
    """h, in 0 to 1: 0 makes all requests alike, 1 gives every request one depth."""
    autocorrelation: float = 0.5
    """a, in 0 to 1 without 1: of neighbouring tokens, besides what their request shares."""
    fewest: int = 1
    """Loops that every token runs: smaller depths are raised to it."""
    _cuts: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if abs(sum(self.probabilities) - 1) > 1e-9 or min(self.probabilities) < 0:
            raise UsageError(f"depth probabilities must add up to 1, got {self.probabilities}")
        if not 0 <= self.heterogeneity <= 1 or not 0 <= self.autocorrelation < 1:
            raise UsageError(
                "heterogeneity must be in 0 to 1, and autocorrelation at least 0 and below 1; got "
                f"{self.heterogeneity} and {self.autocorrelation}"
            )
        normal = NormalDist()
        shares = [min(max(share, 1e-12), 1 - 1e-12) for share in accumulate(self.probabilities)]
        object.__setattr__(self, "_cuts", tuple(map(normal.inv_cdf, shares[:-1])))

    @property
    def num_planes(self) -> int:
        return len(self.probabilities)

    @property
    def mean(self) -> float:
        """Expected loops of a token behind the first."""
        return sum(
            max(depth, self.fewest) * share
            for depth, share in enumerate(self.probabilities, start=1)
        )

    def depths(self, index: int, num_tokens: int) -> tuple[int, ...]:
        gauss = Random(f"{self.seed}/{index}/depths").gauss
        between, within = sqrt(self.heterogeneity), sqrt(1 - self.heterogeneity)
        kept, new = self.autocorrelation, sqrt(1 - self.autocorrelation**2)
        request, value = between * gauss(0, 1), gauss(0, 1)
        depths = [self.num_planes] * min(num_tokens, FIRST_TOKEN)
        for _ in range(FIRST_TOKEN, num_tokens):
            depth = 1 + bisect_left(self._cuts, request + within * value)
            depths.append(max(depth, self.fewest))
            value = kept * value + new * gauss(0, 1)
        return tuple(depths)


FAMILIES = {
    "easy": (0.20, 0.45, 0.25, 0.10),
    "typical": (0.14, 0.42, 0.28, 0.16),
    "hard": (0.12, 0.38, 0.30, 0.20),
}
"""Probabilities of the depths 1 to 4: means 2.25, 2.46 and 2.58. Not to be written to."""


@dataclass(frozen=True)
class RecordedDepths:
    """Depths of a file, one list a request; requests past the last begin with the first again."""

    traces: Sequence[tuple[int, ...]]
    num_planes: int

    def __post_init__(self) -> None:
        if not self.traces or not all(self.traces):
            raise UsageError("expected an exit trace with a list of depths per request, got none")
        for index, trace in enumerate(self.traces):
            if trace[0] != self.num_planes or not all(1 <= d <= self.num_planes for d in trace):
                raise UsageError(
                    f"exit trace {index} must begin with {self.num_planes}, the depth of a first "
                    f"token, and hold depths in 1..{self.num_planes}; got {trace[:8]}..."
                )

    def depths(self, index: int, num_tokens: int) -> tuple[int, ...]:
        """As recorded; tokens past the end run every loop, as in exit mode `trace`."""
        trace = self.traces[index % len(self.traces)][:num_tokens]
        return trace + (self.num_planes,) * (num_tokens - len(trace))

    def num_past_end(self, index: int, num_tokens: int) -> int:
        """So many of a request's tokens lie past the end of its trace."""
        return max(0, num_tokens - len(self.traces[index % len(self.traces)]))


def depth_source(
    name: str,
    num_planes: int,
    *,
    seed: int = 0,
    heterogeneity: float = 0.25,
    autocorrelation: float = 0.5,
    fewest: int = 1,
) -> DepthSource:
    """A source by what a user calls it.

    Args:
        name: `full`; `easy`, `typical` or `hard`, which are for P = 4; or `mean:X`, which draws
            depth - 1 from a binomial distribution of 1 to P loops with mean X, for any P.
        num_planes: P.
        seed: of the draws.
        heterogeneity: h, see the module.
        autocorrelation: a.
        fewest: loops to which smaller depths are raised.

    Raises:
        UsageError: no such source, or one that P does not have.
    """
    if name == "full":
        return FullDepth(num_planes)
    if name.startswith("mean:"):
        probabilities = _binomial(name, num_planes)
    elif name in FAMILIES:
        probabilities = FAMILIES[name]
        if len(probabilities) != num_planes:
            raise UsageError(
                f"exits {name} are for {len(probabilities)} loops, got a model of {num_planes}; "
                "try mean:X, which suits any"
            )
    else:
        raise UsageError(f"exits must be full, {', '.join(FAMILIES)} or mean:X; got {name!r}")
    return DepthFamily(
        name,
        probabilities,
        seed=seed,
        heterogeneity=heterogeneity,
        autocorrelation=autocorrelation,
        fewest=fewest,
    )


def _binomial(name: str, num_planes: int) -> tuple[float, ...]:
    try:
        mean = float(name.removeprefix("mean:"))
    except ValueError:
        mean = 0.0
    if not 1 <= mean <= num_planes or num_planes == 1:
        raise UsageError(f"mean:X needs X in 1..{num_planes}, a mean of 2 or more; got {name!r}")
    n, share = num_planes - 1, (mean - 1) / (num_planes - 1)
    return tuple(comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(num_planes))
