"""Forms of the programs that run the LM head: what their rows may ask for.

On a CPU one form serves all, and looks at run time what is needed. On a GPU it would have to bring
each condition to the host first, so the host, which knows what its requests ask for, picks one of
several that hold no condition.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from looped.sched import ItemKind, LaunchKind, ScheduledItem

from .request_sampling import RequestSampling, sampling_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """What one executable of a program does for every row."""

    name: str
    """In profiles and records; empty where a program has no forms."""
    is_conditional: bool = False
    """Whether it looks at run time what is needed of the rest."""
    draws: bool = False
    """Adds noise, for rows with a temperature."""
    filters: bool = False
    """Edits logits, and drops tokens by top-k, top-p and min-p."""
    ranks: bool = False
    """Returns the most likely tokens."""
    copies: bool = False
    """Fills the planes that rows have skipped."""


ONLY = Form(name="")
"""Of a program without forms."""
CONDITIONAL = Form(
    name="conditional", is_conditional=True, draws=True, filters=True, ranks=True, copies=True
)
"""All of it, as far as it is needed: for a CPU."""
_BARE = (
    Form(name="greedy"),
    Form(name="drawn", draws=True),
    Form(name="sampled", draws=True, filters=True),
    Form(name="ranked", draws=True, filters=True, ranks=True),
)
_COPYING = tuple(
    Form(
        name=f"{form.name}_copies",
        draws=form.draws,
        filters=form.filters,
        ranks=form.ranks,
        copies=True,
    )
    for form in _BARE
)


def forms_of(
    kind: LaunchKind, *, is_conditional: bool, is_deterministic: bool = False
) -> tuple[Form, ...]:
    """Every form that an engine can need of a program.

    Args:
        kind: of the program.
        is_conditional: whether conditions cost nothing where it runs: on a CPU.
        is_deterministic: whether one form has to do.
    """
    if kind.runs_layers:
        return (ONLY,)
    if is_conditional:
        return (CONDITIONAL,)
    if kind.brings_scores:
        return _BARE[-1:] if is_deterministic else (_BARE[0], _BARE[-1])
    return _COPYING[-1:] if is_deterministic else (*_BARE, *_COPYING)


def form_for_heads(forms: tuple[Form, ...], items: Iterable[ScheduledItem], num_loops: int) -> Form:
    """The least of a head's forms that does all that its rows may need."""
    if len(forms) == 1:
        return forms[0]
    samplings = [sampling_of(item.request) for item in items]
    needs = {
        "draws": any(sampling.temperature > 0 for sampling in samplings),
        "filters": any(sampling.is_edited or _drops(sampling) for sampling in samplings),
        "ranks": any(sampling.num_logprobs for sampling in samplings),
        "copies": any(_may_skip(item, num_loops) for item in items),
    }
    return _least(forms, [name for name, is_needed in needs.items() if is_needed])


def form_for_score(forms: tuple[Form, ...], item: ScheduledItem) -> Form:
    """The least of a score's forms that does what its request asks for."""
    return _least(forms, ["ranks"] if sampling_of(item.request).num_prompt_logprobs else [])


def _least(forms: tuple[Form, ...], needed: list[str]) -> Form:
    return next(form for form in forms if all(getattr(form, name) for name in needed))


def _drops(sampling: RequestSampling) -> bool:
    is_cut = sampling.top_p < 1 or sampling.min_p > 0 or sampling.top_k < sampling.vocab_size
    return sampling.temperature > 0 and is_cut


def _may_skip(item: ScheduledItem, num_loops: int) -> bool:
    """Whether the row may leave planes to be filled."""
    rule = item.request.exit_rule
    is_early = rule.threshold < 1 or rule.max_loops < num_loops
    return item.kind is ItemKind.DECODE and (
        is_early or min(rule.trace, default=num_loops) < num_loops
    )
