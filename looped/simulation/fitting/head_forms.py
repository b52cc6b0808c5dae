"""From what heads of each bucket and form took to what a cost table says: seconds, and factors."""

from dataclasses import dataclass, field

GREEDY = "greedy"
"""The form that others have factors over."""
LEAST_HEADS = 5
"""Of a bucket and form, for it to say how forms compare, unless all have fewer."""

Place = tuple[int, str]
"""A bucket and a form."""


@dataclass(frozen=True)
class HeadForms:
    """Heads that were fitted, by bucket and form.

    A bucket need not have had every form: forms are compared where two had the same bucket, and
    then each bucket is priced by all the heads that it had.
    """

    fitted: dict[Place, float]
    """Seconds."""
    counts: dict[Place, int]
    """Heads behind each."""
    factors: dict[str, float] = field(init=False)
    """What each form takes over the base, which is not named: `greedy`, or the form that ran most
    often where that did not run."""

    def __post_init__(self) -> None:
        totals: dict[str, int] = {}
        for (_, form), count in self.counts.items():
            totals[form] = totals.get(form, 0) + count
        base = GREEDY if totals.get(GREEDY) else max(totals, key=totals.__getitem__, default=GREEDY)
        others = [form for form, count in totals.items() if count and form != base]
        factors = {form: self._factor(form, base) for form in sorted(others)}
        object.__setattr__(self, "factors", factors)

    def seconds(self) -> dict[int, float]:
        """What a head of the base form takes, by bucket."""
        sums: dict[int, float] = {}
        counts: dict[int, int] = {}
        for (bucket, form), count in self.counts.items():
            one = self.fitted[bucket, form] / self.factors.get(form, 1.0)
            sums[bucket] = sums.get(bucket, 0.0) + count * one
            counts[bucket] = counts.get(bucket, 0) + count
        return {bucket: total / max(counts[bucket], 1) for bucket, total in sums.items()}

    def _factor(self, form: str, base: str) -> float:
        """1 where no bucket had both."""
        weights = {
            bucket: min(count, self.counts.get((bucket, base), 0))
            for (bucket, other), count in self.counts.items()
            if other == form
        }
        many = {bucket: weight for bucket, weight in weights.items() if weight >= LEAST_HEADS}
        own, theirs = (
            sum(
                weight * self.fitted[bucket, one]
                for bucket, weight in (many or weights).items()
                if weight
            )
            for one in (form, base)
        )
        return own / theirs if own > 0 and theirs > 0 else 1.0
