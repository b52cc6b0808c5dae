"""A cost model from a launch log: weighted least deviations with no negative seconds.

Every bucket of every kind has an intercept, a head's of every form, and the keys that rows see a
slope each; passes of one launch count singly. A launch is its passes and, behind them, its head:
what either takes shows where launches with a head are beside launches without, of a bucket. Where
all have one, as with live exits, only their sum is met: log a run at full depth or at known depths
for the two apart. Those whose end the
host did not see share the sample of the next one that it did. Its end is the latest of

    call k + seconds of work k + ... + seconds of the last work

over its passes and heads k: where the host was the slower one, the device ran dry before a call.
Which k it is depends on the seconds that are looked for, so rounds of finding k and of fitting
alternate.

Errors are relative: weights are 1 / measurement in a first round, and 1 / prediction in the
others, which favours no short ones. They count by their absolute value, not by their square, since
device times have long tails; after each round samples whose ratio to the prediction lies far out
are dropped as well (stalls of the machine). That meets the usual launch; all coefficients are then
scaled so that the fitted samples add up to about what was measured, for a run to last as long. Of
every five samples one is held out; R2 and errors of the fit are those of that fifth. Host times
are means (least squares).

From the intercepts follow the numbers that carry to buckets without one: the floor is the smallest
intercept of a pass, a row costs the smallest intercept per row of the bucket (over buckets that
ran often enough), and what is left above the larger of the two is the bucket's overhead. So known
buckets are met exactly, and unknown ones lie on the cheapest law that the known ones allow:
measure those that matter. Of heads this is said of form `greedy`, or the form that ran most often
where that one did not; each other form has a factor, by its launches and their buckets.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from looped.engine.events import EngineEvent, LaunchEvent
from looped.errors import LoopedError
from looped.record.launch_log import WAITS, LaunchLog
from looped.sched import CostModel, LaunchKind, LaunchWork, Rung, rung_order

from .head_forms import HeadForms
from .least_squares import non_negative_least_deviations, non_negative_least_squares
from .samples import Sample, samples_of

Column = tuple[LaunchKind, int, str]
"""What an intercept is of: a kind, a bucket, and a form of heads."""

HOLD_OUT_EVERY = 5
"""Of so many samples, the last is held out."""
FAR_OUT = 6.0
"""A sample is dropped where the log of its ratio to the prediction is so many standard deviations
(1.4826 times the median absolute deviation) off the median..."""
LEAST_RATIO = 1.5
"""... and at least by this factor."""
LEAST_SAMPLES = 50
LEAST_SECONDS = 1e-9
"""Shorter times count as this."""
NUM_ROUNDS = 20
"""At most, of fitting."""
LEAST_LAUNCHES = 10
"""Of a bucket, for its intercept to shape the law of the others."""

LEAST_R_SQUARED = 0.8
"""Below it, of what was held out, a fit is not worth much."""

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
    """Launches, and heads, behind each intercept."""

    def to_json(self) -> dict[str, Any]:
        """The quality, without the model."""
        counts = {f"{kind.name.lower()} {rows}": n for (kind, rows), n in self.num_launches.items()}
        names = ("r_squared", "mape", "bias", "num_fitted", "num_held_out", "num_outliers")
        values = {name: getattr(self, name) for name in (*names, "num_compiling")}
        return values | {"num_launches": counts}


def fit_costs(log: LaunchLog, *, name: str, source: str) -> Fit:
    """Fits a cost model to the launches of one engine.

    Args:
        log: of one engine; made without `--launch-log-waits` it says what a server's launches cost,
            which overlap the host's work. Where the device is done before the host turns to a
            launch, only `--run-ahead 0` or `--launch-log-waits` shows when.
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
            f"{len(launches)} launches ({samples.num_compiling} compiled a step; a sample lasts up "
            "to a launch that the host waited for); log a longer run, or with --run-ahead 0 or "
            "--launch-log-waits"
        )
    table = _Table(samples.used)
    is_held_out = np.arange(len(samples.used)) % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1
    solution, is_kept = table.solve(~is_held_out)
    host = _fit_host(
        [(items, rows) for items, rows, _ in samples.host],
        [seconds for *_, seconds in samples.host],
    )
    call = _fit_host(
        [(rows,) for rows, _ in samples.calls], [seconds for _, seconds in samples.calls]
    )
    costs = table.costs(
        solution,
        name=name,
        source=source,
        num_planes=engine.config["num_planes"],
        host_launch_seconds=host[0],
        host_item_seconds=host[1],
        host_row_seconds=host[2],
        host_call_seconds=call[0],
        host_call_row_seconds=call[1],
    )
    tested = [one for i, one in enumerate(samples.used) if is_held_out[i] and is_kept[i]]
    measured = np.array([one.seconds for one in tested])
    predicted = np.array([one.end(costs.seconds) for one in tested])
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
    """Samples as rows of a linear system, once it is known from which call on the device was busy.

    A sample's end is the latest of (call + seconds of the launches from there on) over its calls.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        works = [work for sample in samples for work in sample.works]
        self._counts: dict[Column, int] = {}
        """Works of each intercept in the samples that were fitted; see `solve`."""
        self._columns = sorted(
            set(map(_column, works)), key=lambda one: (rung_order(one[:2]), one[2])
        )
        self.num_launches: dict[Rung, int] = Counter((one.kind, one.bucket) for one in works)
        # The median, as the fit by absolute errors meets the usual launch and not the mean one.
        self._usual_passes = {
            rung: np.median(
                [one.num_passes / one.num_calls for one in works if (one.kind, one.bucket) == rung]
            )
            for rung in self.num_launches
        }
        """Passes of a call, of each kind and bucket."""
        self._seconds = np.array([sample.seconds for sample in samples])
        self._calls = np.array([call for sample in samples for call in sample.calls])
        sizes = [len(sample.works) for sample in samples]
        self._firsts = np.cumsum([0, *sizes[:-1]])
        """Index of each sample's first work."""
        self._ends = np.cumsum(sizes)
        matrix = np.array([self._row(work) for work in works])
        self._sums = np.concatenate([np.zeros((1, matrix.shape[1])), np.cumsum(matrix, axis=0)])
        """Rows of the works before each, added up."""

    def solve(self, is_fitted: Bool[np.ndarray, " n"]) -> tuple[Array, Bool[np.ndarray, " n"]]:
        """Coefficients, and which samples are not far out.

        Two starts, as if the device had been busy all the time and as if it had always run dry;
        whichever comes to the smaller errors.
        """
        starts = self._firsts, self._ends - 1
        solutions = [self._solve_from(start, is_fitted) for start in starts]
        errors = [
            float(np.sum(np.minimum(self._distances(solution)[is_fitted], 1.0)))
            for solution, _ in solutions
        ]
        solution, is_kept = solutions[int(np.argmin(errors))]
        of_sample = np.repeat(is_fitted & is_kept, self._ends - self._firsts)
        counts = np.count_nonzero(np.diff(self._sums, axis=0)[of_sample], axis=0)
        self._counts = dict(zip(self._columns, map(int, counts), strict=False))
        return solution, is_kept

    def predicted(self, solution: Array) -> Array:
        """When the host sees the end of each sample, as `Sample.seconds`."""
        starts = self._busy_from(solution)
        return self._calls[starts] + (self._sums[self._ends] - self._sums[starts]) @ solution

    def _solve_from(
        self, starts: Int64[np.ndarray, " n"], is_fitted: Bool[np.ndarray, " n"]
    ) -> tuple[Array, Bool[np.ndarray, " n"]]:
        """The same, from a guess: the work of each sample from which on the device was busy."""
        is_kept = np.ones(len(self._seconds), bool)
        seconds = self._seconds - self._calls[starts]
        weights = 1 / np.maximum(seconds, LEAST_SECONDS)
        solution = np.zeros(self._sums.shape[1])
        for round_index in range(NUM_ROUNDS):
            rows = is_fitted & is_kept
            matrix = (self._sums[self._ends] - self._sums[starts])[rows]
            seconds = (self._seconds - self._calls[starts])[rows]
            weighted = matrix * weights[rows][:, None]
            before = solution
            solution = non_negative_least_deviations(weighted, seconds * weights[rows])
            if round_index > 1 and np.allclose(solution, before, rtol=1e-6, atol=0):
                break
            starts = self._busy_from(solution)
            is_kept = self._is_near(solution)
            busy = (self._sums[self._ends] - self._sums[starts]) @ solution
            weights = 1 / np.maximum(busy, LEAST_SECONDS)
        return self._balanced(solution, is_fitted & is_kept), is_kept

    def _balanced(self, solution: Array, rows: Bool[np.ndarray, " n"]) -> Array:
        """The coefficients, scaled for the samples to add up to what was measured.

        By the calls that the unscaled ones find, so that the sum is met to a per cent or so.
        """
        starts = self._busy_from(solution)
        measured = (self._seconds - self._calls[starts])[rows].sum()
        predicted = (self._sums[self._ends] - self._sums[starts])[rows].sum(axis=0) @ solution
        balanced: Array = solution * (measured / max(predicted, LEAST_SECONDS))
        return balanced

    def _busy_from(self, solution: Array) -> Int64[np.ndarray, " n"]:
        """Index of the work in each sample behind which the device did not run dry any more."""
        before = self._sums[:-1] @ solution
        latest = np.maximum.reduceat(self._calls - before, self._firsts)
        is_latest = self._calls - before >= np.repeat(latest, self._ends - self._firsts)
        indices = np.where(is_latest, np.arange(len(self._calls)), len(self._calls))
        starts: Int64[np.ndarray, " n"] = np.minimum.reduceat(indices, self._firsts)
        return starts

    def costs(self, solution: Array, **others: Any) -> CostModel:
        """The coefficients as a cost model."""
        values = dict(zip(self._columns, map(float, solution), strict=False))
        forms = HeadForms(
            {one[1:]: value for one, value in values.items() if one[2]},
            {one[1:]: self._counts[one] for one in values if one[2]},
        )
        intercepts: dict[Rung, float] = {one[:2]: v for one, v in values.items() if not one[2]}
        intercepts |= {(LaunchKind.HEAD, rows): v for rows, v in forms.seconds().items()}
        passes = {rung: value for rung, value in intercepts.items() if rung[0].runs_layers}
        heads = {rung: value for rung, value in intercepts.items() if not rung[0].runs_layers}
        if not passes or not heads:
            raise LoopedError("expected launches over the layers and LM heads in the log")
        floor, row = self._law(passes)
        head_floor, head_row = self._law(heads)
        overheads: dict[LaunchKind, dict[int, float]] = {}
        for (kind, bucket), value in intercepts.items():
            law = (floor, row) if kind.runs_layers else (head_floor, head_row)
            per_pass = max(0.0, value - max(law[0], law[1] * bucket))
            passes_of_call = float(self._usual_passes[kind, bucket]) if kind.runs_layers else 1.0
            overheads.setdefault(kind, {})[bucket] = per_pass * passes_of_call
        return CostModel(
            weight_floor=floor,
            row_seconds=row,
            decode_key_seconds=float(solution[-2]),
            prompt_key_seconds=float(solution[-1]),
            head_floor=head_floor,
            head_row_seconds=head_row,
            overheads=overheads,
            head_factors=forms.factors,
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

    def _row(self, work: LaunchWork) -> list[float]:
        """What a work has of each coefficient."""
        own = _column(work)
        amount = work.num_passes if work.kind.runs_layers else 1
        return [
            *(float(amount) if column == own else 0.0 for column in self._columns),
            work.num_passes * work.decode_keys,
            work.num_passes * work.prompt_keys,
        ]

    def _distances(self, solution: Array) -> Array:
        """Of each sample, the logarithm of measured over predicted seconds, without a sign."""
        predicted = np.maximum(self.predicted(solution), LEAST_SECONDS)
        distances: Array = np.abs(np.log(np.maximum(self._seconds, LEAST_SECONDS) / predicted))
        return distances

    def _is_near(self, solution: Array) -> Bool[np.ndarray, " n"]:
        distances = self._distances(solution)
        allowed = max(FAR_OUT * 1.4826 * float(np.median(distances)), float(np.log(LEAST_RATIO)))
        return distances <= allowed


def _column(work: LaunchWork) -> Column:
    return work.kind, work.bucket, work.form


def _fit_host(sizes: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    """Seconds of a launch and of each size, without the longest thousandth (a stall)."""
    if not seconds:
        return [0.0] * (1 + len(sizes[0]) if sizes else 3)
    measured = np.maximum(np.array(seconds), 0.0)
    usual = measured <= np.quantile(measured, 0.999)
    matrix = np.concatenate([np.ones((len(sizes), 1)), np.array(sizes, float)], axis=1)[usual]
    return [float(one) for one in non_negative_least_squares(matrix, measured[usual])]
