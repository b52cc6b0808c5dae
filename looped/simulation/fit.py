"""A cost model from a launch log: weighted least squares with no negative seconds.

Every bucket of every kind has an intercept, and the keys that rows see a slope each; passes of one
launch count singly. Errors are relative: weights are 1 / measurement in a first round, after which
samples whose ratio to the prediction lies far out are dropped (stalls of the machine), and
1 / prediction in two more, which favours no short ones. Of
every five samples one is held out; what is told of the fit is told of those.

From the intercepts follow the numbers that carry to buckets without one: the floor is the smallest
intercept of a pass, a row costs the smallest intercept per row of the bucket (over buckets that
ran often enough), and what is left above the larger of the two is the bucket's overhead. So known
buckets are met exactly, and unknown ones lie on the cheapest law that the known ones allow:
measure those that matter.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from looped.errors import LoopedError
from looped.launch_events import EngineEvent, LaunchEvent
from looped.launch_log import WAITS, LaunchLog
from looped.sched import CostModel, LaunchKind

from .samples import Sample, samples_of

HOLD_OUT_EVERY = 5
"""Of so many samples, the last is held out."""
FAR_OUT = 6.0
"""A sample is dropped where the log of its ratio to the prediction is so many standard deviations
(1.4826 times the median absolute deviation) off the median..."""
LEAST_RATIO = 1.5
"""... and at least by this factor."""
LEAST_SAMPLES = 50
LEAST_LAUNCHES = 10
"""Of a bucket, for its intercept to shape the law of the others."""

Rung = tuple[LaunchKind, int]
Array = Float64[np.ndarray, "..."]


@dataclass(frozen=True)
class Fit:
    """A cost model and how well it meets samples that it has not seen."""

    costs: CostModel
    r_squared: float
    """1 - (sum of squared errors) / (sum of squares about the mean), over what was held out."""
    mape: float
    """Mean absolute error over the measured seconds, of what was held out, as a share."""
    bias: float
    """Predicted over measured seconds, summed over what was held out."""
    num_fitted: int
    num_held_out: int
    num_outliers: int
    """Samples that were dropped, of either part."""
    num_compiling: int
    """Samples in which a step was compiled, also dropped."""
    num_launches: dict[Rung, int]
    """Launches behind each intercept."""

    def to_json(self) -> dict[str, Any]:
        """The quality, without the model."""
        counts = {f"{kind.name.lower()} {rows}": n for (kind, rows), n in self.num_launches.items()}
        names = ("r_squared", "mape", "bias", "num_fitted", "num_held_out", "num_outliers")
        values = {name: getattr(self, name) for name in (*names, "num_compiling")}
        return values | {"num_launches": counts}


def fit_costs(log: LaunchLog, *, name: str, source: str) -> Fit:
    """Fits a cost model to the launches of one engine.

    Args:
        log: of one engine; best made with `--launch-log-waits`.
        name: of the table.
        source: how the log was made, for whoever reads the table.

    Raises:
        LoopedError: several engines, too few launches, or none of the layers or of the LM head.
    """
    engines = {one.engine_index: one for one in log.events if isinstance(one, EngineEvent)}
    if len(engines) != 1:
        raise LoopedError(f"expected a log of one engine, got {len(engines)}; log each on its own")
    (engine,) = engines.values()
    launches = [event for event in log.events if isinstance(event, LaunchEvent)]
    samples = samples_of(launches, waits_for_device=log.meta.get(WAITS, False))
    if len(samples.used) < LEAST_SAMPLES:
        raise LoopedError(
            f"expected {LEAST_SAMPLES} samples or more, got {len(samples.used)} of "
            f"{len(launches)} launches ({samples.num_compiling} compiled a step); log a "
            "longer run"
        )
    table = _Table(samples.used)
    is_held_out = np.arange(len(samples.used)) % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1
    solution, is_kept = table.solve(~is_held_out)
    host = _fit_host(samples.host)
    costs = table.costs(
        solution,
        name=name,
        source=source,
        num_planes=engine.config["num_planes"],
        host_launch_seconds=host[0],
        host_item_seconds=host[1],
        host_row_seconds=host[2],
    )
    tested = [one for i, one in enumerate(samples.used) if is_held_out[i] and is_kept[i]]
    measured = np.array([one.seconds for one in tested])
    predicted = np.array([sum(map(costs.seconds, one.works)) for one in tested])
    spread = float(np.sum((measured - measured.mean()) ** 2))
    return Fit(
        costs=costs,
        r_squared=1 - float(np.sum((measured - predicted) ** 2)) / spread if spread else 0.0,
        mape=float(np.mean(np.abs(predicted - measured) / measured)),
        bias=float(predicted.sum() / measured.sum()),
        num_fitted=int(np.sum(~is_held_out & is_kept)),
        num_held_out=len(tested),
        num_outliers=int(np.sum(~is_kept)),
        num_compiling=samples.num_compiling,
        num_launches=table.num_launches,
    )


class _Table:
    """Samples as rows of a linear system."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        launches = [work for sample in samples for work in sample.works]
        self.num_launches: dict[Rung, int] = Counter((one.kind, one.bucket) for one in launches)
        self._rungs = sorted(self.num_launches, key=lambda rung: (rung[0].value, rung[1]))
        self._mean_passes = {
            rung: np.mean([one.num_passes for one in launches if (one.kind, one.bucket) == rung])
            for rung in self._rungs
        }
        self._seconds = np.array([sample.seconds for sample in samples])
        self._matrix = np.array([self._row(sample) for sample in samples])

    def solve(self, is_fitted: Bool[np.ndarray, " n"]) -> tuple[Array, Bool[np.ndarray, " n"]]:
        """Coefficients, and which samples are not far out."""
        is_kept = np.ones(len(self._seconds), bool)
        predicted = self._seconds
        solution = np.zeros(self._matrix.shape[1])
        for round_index in range(3):
            rows = is_fitted & is_kept
            weights = 1 / np.maximum(predicted[rows], 1e-9)
            weighted = self._matrix[rows] * weights[:, None]
            solution = non_negative_least_squares(weighted, self._seconds[rows] * weights)
            predicted = self._matrix @ solution
            if round_index == 0:
                is_kept = self._is_near(predicted)
        return solution, is_kept

    def costs(self, solution: Array, **others: Any) -> CostModel:
        """The coefficients as a cost model."""
        intercepts = dict(zip(self._rungs, map(float, solution), strict=False))
        passes = {rung: value for rung, value in intercepts.items() if rung[0].runs_layers}
        heads = {rung: value for rung, value in intercepts.items() if not rung[0].runs_layers}
        if not passes or not heads:
            raise LoopedError("expected launches over the layers and of the LM head in the log")
        floor, row = self._law(passes)
        head_floor, head_row = self._law(heads)
        overheads: dict[LaunchKind, dict[int, float]] = {}
        for (kind, bucket), value in intercepts.items():
            law = (floor, row) if kind.runs_layers else (head_floor, head_row)
            per_pass = max(0.0, value - max(law[0], law[1] * bucket))
            passes_of_launch = float(self._mean_passes[kind, bucket]) if kind.runs_layers else 1.0
            overheads.setdefault(kind, {})[bucket] = per_pass * passes_of_launch
        return CostModel(
            weight_floor=floor,
            row_seconds=row,
            decode_key_seconds=float(solution[-2]),
            prompt_key_seconds=float(solution[-1]),
            head_floor=head_floor,
            head_row_seconds=head_row,
            overheads=overheads,
            **others,
        )

    def _law(self, intercepts: dict[Rung, float]) -> tuple[float, float]:
        """The floor and the seconds of a row, the largest that stay below every intercept.

        Buckets that hardly ran have no say, unless all are such.
        """
        usual = [rung for rung in intercepts if self.num_launches[rung] >= LEAST_LAUNCHES]
        rungs = usual or list(intercepts)
        floor = min(intercepts[rung] for rung in rungs)
        return floor, min(intercepts[rung] / rung[1] for rung in rungs)

    def _row(self, sample: Sample) -> list[float]:
        counts: Counter[Rung] = Counter()
        decode_keys = prompt_keys = 0
        for work in sample.works:
            counts[work.kind, work.bucket] += work.num_passes if work.kind.runs_layers else 1
            decode_keys += work.num_passes * work.decode_keys
            prompt_keys += work.num_passes * work.prompt_keys
        return [*(float(counts[rung]) for rung in self._rungs), decode_keys, prompt_keys]

    def _is_near(self, predicted: Array) -> Bool[np.ndarray, " n"]:
        ratios = np.log(np.maximum(self._seconds, 1e-9) / np.maximum(predicted, 1e-9))
        distances = np.abs(ratios - np.median(ratios))
        allowed = max(FAR_OUT * 1.4826 * float(np.median(distances)), float(np.log(LEAST_RATIO)))
        return distances <= allowed


def _fit_host(times: list[tuple[int, int, float]]) -> tuple[float, float, float]:
    """Seconds a launch, an item and a row, without the longest hundredth (a pause, a stall)."""
    if not times:
        return 0.0, 0.0, 0.0
    items, rows, seconds = np.maximum(np.array(times, float).T, 0.0)
    usual = seconds <= np.quantile(seconds, 0.99)
    matrix = np.stack([np.ones_like(items), items, rows], axis=1)[usual]
    launch, item, row = non_negative_least_squares(matrix, seconds[usual])
    return float(launch), float(item), float(row)


def non_negative_least_squares(matrix: Array, target: Array) -> Array:
    """x >= 0 that minimises |matrix x - target|: the active-set method of Lawson and Hanson.

    Args:
        matrix: [samples, columns]; columns of zeros get 0.
        target: [samples].
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    solution = np.zeros(matrix.shape[1])
    is_free = np.zeros(matrix.shape[1], bool)
    tolerance = 1e-10 * max(float(np.abs(scaled.T @ target).max(initial=0.0)), 1e-300)
    for _ in range(3 * matrix.shape[1]):
        gradient = scaled.T @ (target - scaled @ solution)
        gradient[is_free] = -np.inf
        if gradient.max(initial=-np.inf) <= tolerance:
            break
        is_free[int(gradient.argmax())] = True
        while is_free.any():
            trial = np.zeros_like(solution)
            trial[is_free] = np.linalg.lstsq(scaled[:, is_free], target, rcond=None)[0]
            if trial[is_free].min() > 0:
                solution = trial
                break
            # As far towards the trial as nothing turns negative; what is 0 then stays there.
            falls = is_free & (trial <= 0)
            steps = solution[falls] / np.maximum(solution[falls] - trial[falls], 1e-300)
            solution = solution + float(steps.min()) * (trial - solution)
            is_free &= solution > 1e-15
            solution[~is_free] = 0.0
    return solution / scale
