"""What `looped generate --json` prints of a completion."""

import json

from byte_tokenizers import cut

from looped.engine.outputs import Completion, LoopScores
from looped.sched import FinishReason
from looped.text.completion_json import completion_to_json

DONE = Completion(
    request_id="7",
    sample_index=0,
    prompt_token_ids=(2, 1),
    prompt_scores=(
        LoopScores(loop=4, logprobs=(-0.5,), best_token_ids=(0,), top_logprobs=(((0, -0.125),),)),
    ),
    token_ids=(0, 1),
    exit_depths=(4, 2),
    logprobs=(-0.25, -1.5),
    top_logprobs=(((0, -0.25), (1, -2.0)), ()),
    finish_reason=FinishReason.STOP,
    stop_reason=1,
    error=None,
    seed=3,
    num_cached_tokens=0,
)


def test_tokens_and_alternatives_come_as_text_and_as_ids():
    tokenizer, _ = cut([b"a", b"\xc3"])
    values = completion_to_json(DONE, tokenizer)
    assert values["top_logprobs"] == [
        [
            {"token_id": 0, "token": "a", "logprob": -0.25},
            {"token_id": 1, "token": "\N{REPLACEMENT CHARACTER}", "logprob": -2.0},
        ],
        [],
    ]
    assert values["prompt_tokens"] == ["unknown", "\N{REPLACEMENT CHARACTER}"]
    assert values["prompt_scores"] == [
        {
            "loop": 4,
            "logprobs": [None, -0.5],
            "best_token_ids": [None, 0],
            "best_tokens": [None, "a"],
            "top_logprobs": [None, [{"token_id": 0, "token": "a", "logprob": -0.125}]],
        }
    ]
    assert (values["finish_reason"], values["stop_reason"]) == ("stop", 1)
    assert json.loads(json.dumps(values)) == values


def test_without_a_tokenizer_there_are_ids_and_no_text():
    values = completion_to_json(DONE, None)
    assert (values["text"], values["tokens"]) == (None, None)
    assert values["token_ids"] == [0, 1]
    assert values["top_logprobs"][0][0] == {"token_id": 0, "token": None, "logprob": -0.25}
    assert values["prompt_scores"][0]["best_tokens"] is None


def test_every_field_is_in_it():
    fields = set(Completion.__dataclass_fields__)
    assert set(completion_to_json(DONE, None)) == fields | {"prompt_tokens"}
