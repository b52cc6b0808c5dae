"""The head behind a launch: who has left, what is drawn, and what becomes of the row."""

from dataclasses import fields, replace

import jax
import numpy as np
import pytest
from engines import loaded_model, make_engine
from step_states import changed, field_of, random_state, with_rows

from looped.programs.head import NUM_SINGLE, head
from looped.programs.lookahead import LookaheadHeads
from looped.programs.parameters import Parameters
from looped.programs.sampling.forms import (
    CONDITIONAL,
    form_for_heads,
    form_for_score,
    forms_of,
)
from looped.programs.sampling.head_output import HeadOutput
from looped.programs.sampling.request_sampling import RequestSampling
from looped.reference import head_logits
from looped.sched import (
    ExitOptions,
    ItemKind,
    LaunchKind,
    Request,
    RowStatus,
    ScheduledItem,
    resolve_exit,
)

NUM_SLOTS = 8
NOBODY = NUM_SLOTS
jitted = jax.jit(head, static_argnums=(0, 1, 2))


@pytest.fixture(scope="module")
def shape(request):
    return make_engine(request.getfixturevalue("tiny_folder")).runner.executables.shape


@pytest.fixture(scope="module")
def parameters(request):
    model = loaded_model(request.getfixturevalue("tiny_folder")).model
    return Parameters(model=model, lookahead=LookaheadHeads.create(model.config, seed=0))


def run(shape, parameters, rows, slots, form=CONDITIONAL):
    """The state before and after, and the record."""
    before = with_rows(random_state(shape), rows)
    padded = [*slots, *[NOBODY] * (NUM_SLOTS - len(slots))]
    before = replace(before, head_slots=np.asarray(padded, np.int32))
    after, record = jitted(shape, form, NUM_SLOTS, parameters, before)
    return before, jax.tree.map(np.asarray, after), np.asarray(record)


def test_each_candidate_is_told_what_became_of_it(shape, parameters):
    rows = {
        2: {"depth": 2, "is_leaving": 1},
        5: {"depth": 1},
        0: {"depth": 3, "is_pending": 1},
        7: {"depth": 4, "is_leaving": 1, "is_done": 1},
        1: {"depth": 4, "is_leaving": 1},
    }
    before, after, record = run(shape, parameters, rows, [5, 2, 7, 0])
    status, loops = record[:NUM_SINGLE]
    assert status.tolist() == [
        RowStatus.STAYED, RowStatus.LEFT, RowStatus.MASKED, RowStatus.LEAVES_NEXT,
        *[RowStatus.MASKED] * 4,
    ]  # fmt: skip
    assert loops[:4].tolist() == [1, 2, 4, 3]
    gates = record[NUM_SINGLE : NUM_SINGLE + 4, :4].view(np.float32)
    np.testing.assert_array_equal(gates.T, before.gates[[5, 2, 7, 0]])
    assert changed(before.progress, after.progress) == {2}, "1 left, too, and is no candidate"


def test_a_row_that_has_left_starts_again_with_the_token_drawn(shape, parameters):
    rows = {slot: {"depth": 4, "is_leaving": 1, "position": 30 + slot} for slot in (6, 3)}
    before, after, record = run(shape, parameters, rows, [6, 3])
    output = HeadOutput.unpack(record[NUM_SINGLE + 4 :])
    logits = np.asarray(head_logits(parameters.model, before.hidden[[6, 3]]))
    assert output.token_ids[:2].tolist() == logits.argmax(-1).tolist()
    assert output.is_finite[:2].all()
    assert not output.top_token_ids.any(), "no row asks for alternatives"
    for name, expected in (("depth", [0, 0]), ("is_leaving", [0, 0]), ("is_done", [0, 0])):
        assert field_of(after, name)[[6, 3]].tolist() == expected
    assert field_of(after, "position")[[6, 3]].tolist() == [37, 34]
    assert field_of(after, "num_outputs")[[6, 3]].tolist() == [2, 2]
    assert field_of(after, "last_token")[[6, 3]].tolist() == output.token_ids[:2].tolist()
    for name in ("key_pool", "value_pool", "hidden", "options", "block_tables", "gates"):
        assert changed(getattr(before, name), getattr(after, name)) == set(), name


def test_a_head_from_which_nobody_has_left_changes_nothing(shape, parameters):
    """Not even where NaN would show that it was looked at."""
    rows = {5: {"depth": 1}, 7: {"depth": 4, "is_leaving": 1, "is_done": 1, "is_edited": 1}}
    forms = (CONDITIONAL, *forms_of(LaunchKind.HEAD, is_conditional=False))
    before = with_rows(random_state(shape), rows)
    slots = np.asarray([5, 7] + [NOBODY] * 6, np.int32)
    before = replace(before, hidden=np.full_like(before.hidden, np.nan), head_slots=slots)
    for form in forms:
        after, record = jitted(shape, form, NUM_SLOTS, parameters, before)
        for field in fields(before):
            np.testing.assert_array_equal(getattr(after, field.name), getattr(before, field.name))
        statuses = np.asarray(record)[0].tolist()
        assert statuses == [RowStatus.STAYED] + [RowStatus.MASKED] * 7, form.name


def test_planes_that_a_row_has_skipped_take_those_of_the_last_it_ran(shape, parameters):
    rows = {
        2: {"depth": 1, "is_leaving": 1, "position": 7},
        5: {"depth": 4, "is_leaving": 1, "position": 8},
        0: {"depth": 3, "is_leaving": 1, "position": 25},
        4: {"depth": 2, "is_leaving": 0, "position": 9},
    }
    before, after, _ = run(shape, parameters, rows, [2, 5, 0, 4])
    tables = before.block_tables
    for name in ("key_pool", "value_pool"):
        old, new = getattr(before, name), getattr(after, name)
        written = set()
        for layer in range(3):
            first = layer * shape.num_blocks
            for slot, source, targets, index, offset in (
                (2, 0, (1, 2, 3), 0, 7),
                (0, 2, (3,), 1, 9),
            ):
                for plane in targets:
                    target = first + tables[slot, plane, index]
                    np.testing.assert_array_equal(
                        new[target, :, offset], old[first + tables[slot, source, index], :, offset]
                    )
                    written.add(int(target))
        assert changed(old, new) == written


@pytest.mark.parametrize(
    ("options", "is_done"),
    [
        ({}, False),
        ({"num_outputs": 7}, False),
        ({"num_outputs": 8}, True),
        ({"stop": 0}, True),
        ({"stop": 7}, True),
        ({"stop": None}, False),
    ],
)
def test_a_request_ends_on_the_device_by_its_length_or_a_stop_id(
    shape, parameters, options, is_done
):
    row = {"depth": 4, "is_leaving": 1, "num_outputs": options.get("num_outputs", 1)}
    stops = list(range(100, 108))
    token_id = int(head_logits(parameters.model, random_state(shape).hidden[[3]]).argmax(-1)[0])
    assert token_id not in stops
    if options.get("stop") is not None:
        stops[options["stop"]] = token_id
    _, after, _ = run(shape, parameters, {3: row | {"stop_ids": stops}}, [3])
    assert field_of(after, "is_done")[3] == is_done


def test_logits_that_are_not_finite_end_a_request(shape, parameters):
    before = with_rows(random_state(shape), {3: {"depth": 4, "is_leaving": 1}})
    hidden = before.hidden.copy()
    hidden[3] = np.nan
    slots = np.asarray([3] + [NOBODY] * 7, np.int32)
    before = replace(before, hidden=hidden, head_slots=slots)
    after, record = jitted(shape, CONDITIONAL, NUM_SLOTS, parameters, before)
    assert HeadOutput.unpack(np.asarray(record)[NUM_SINGLE + 4 :]).is_finite[0] == 0
    assert field_of(after, "is_done")[3] == 1


def test_forms_without_conditions_agree_with_the_one_that_has_them_bit_for_bit(shape, parameters):
    """Each over rows that it serves."""
    asks = {
        "greedy": {},
        "drawn": {"temperature": 1.5},
        "sampled": {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
        "ranked": {"temperature": 0.8, "top_k": 5, "wants_top": 1},
    }
    forms = forms_of(LaunchKind.HEAD, is_conditional=False)
    assert len(forms) == 8
    for form in forms:
        row = {"depth": 2 if form.copies else 4, "is_leaving": 1}
        row |= asks[form.name.removesuffix("_copies")]
        if form.filters:
            row |= {"is_edited": 1, "presence_penalty": 0.5, "repetition_penalty": 1.2}
        rows = {2: row, 6: {"depth": 4, "is_leaving": 1}, 4: {"depth": 1}}
        _, expected, with_conditions = run(shape, parameters, rows, [2, 6, 4])
        _, after, record = run(shape, parameters, rows, [2, 6, 4], form)
        num_known = len(record) if form.ranks else NUM_SINGLE + 4 + 3
        left = [0, 1]
        np.testing.assert_array_equal(record[:num_known, left], with_conditions[:num_known, left])
        np.testing.assert_array_equal(record[:NUM_SINGLE], with_conditions[:NUM_SINGLE])
        for name in ("progress", "key_pool", "value_pool", "token_marks"):
            np.testing.assert_array_equal(getattr(after, name), getattr(expected, name))


def item(sampling=None, exit_options=None, kind=ItemKind.DECODE):
    defaults = {
        "temperature": 0.0, "top_k": 512, "top_p": 1.0, "min_p": 0.0, "logit_bias": {},
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "min_tokens": 0, "num_logprobs": None, "num_prompt_logprobs": 0, "seed": 0,
        "vocab_size": 512,
    }  # fmt: skip
    request = Request(
        request_id="a",
        prompt_token_ids=(1,),
        max_tokens=1,
        exit_rule=resolve_exit(exit_options or ExitOptions(), ExitOptions(), 4),
        payload=RequestSampling(**defaults | (sampling or {})),
    )
    return ScheduledItem(request, kind, 0, 0, 1)


@pytest.mark.parametrize(
    ("items", "name"),
    [
        ([item()], "greedy"),
        ([item({"top_k": 3, "top_p": 0.1})], "greedy"),
        ([item(), item({"temperature": 1.0})], "drawn"),
        ([item({"temperature": 1.0, "min_p": 0.1})], "sampled"),
        ([item({"logit_bias": {3: 1.0}})], "sampled"),
        ([item({"num_logprobs": 0})], "greedy"),
        ([item({"num_logprobs": 2}), item()], "ranked"),
        ([item(None, ExitOptions(threshold=0.5))], "greedy_copies"),
        ([item(None, ExitOptions(max_loops=3))], "greedy_copies"),
        ([item(None, ExitOptions(trace=(4, 4)))], "greedy"),
        ([item({"temperature": 1.0}, ExitOptions(trace=(4, 2)))], "drawn_copies"),
        ([item(None, ExitOptions(threshold=0.5), ItemKind.PROMPT)], "greedy"),
    ],
)
def test_the_least_form_that_serves_every_row_is_taken(items, name):
    assert form_for_heads(forms_of(LaunchKind.HEAD, is_conditional=False), items, 4).name == name
    assert form_for_heads(forms_of(LaunchKind.HEAD, is_conditional=True), items, 4) is CONDITIONAL


def test_a_score_ranks_where_its_request_asks_and_one_form_does_if_deterministic():
    forms = forms_of(LaunchKind.SCORE, is_conditional=False)
    assert form_for_score(forms, item({"num_prompt_logprobs": 3})).name == "ranked"
    assert form_for_score(forms, item({"num_logprobs": 3, "temperature": 1.0})).name == "greedy"
    for kind, name in ((LaunchKind.HEAD, "ranked_copies"), (LaunchKind.SCORE, "ranked")):
        (form,) = forms_of(kind, is_conditional=False, is_deterministic=True)
        assert form.name == name
