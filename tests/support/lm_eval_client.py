"""Run with an interpreter that has lm-evaluation-harness: its requests to a server, as JSON.

    python lm_eval_client.py BASE_URL MODEL TOKENIZER_FOLDER < cases.json > results.json

The cases are `{"loglikelihood": [[context, continuation], …], "loglikelihood_rolling": [[text], …],
"generate_until": [[context, options], …]}`, and the results lists in the same order.
"""

import json
import logging
import sys

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI


def main() -> None:
    base_url, model, tokenizer = sys.argv[1:]
    logging.disable(logging.WARNING)
    client = LocalCompletionsAPI(
        base_url=base_url,
        model=model,
        tokenizer=tokenizer,
        tokenizer_backend="huggingface",
        tokenized_requests=True,
        num_concurrent=4,
        batch_size=2,
        max_length=200,
        max_retries=1,
    )
    results = {}
    for kind, cases in json.load(sys.stdin).items():
        instances = [
            Instance(request_type=kind, doc={}, arguments=tuple(case), idx=index)
            for index, case in enumerate(cases)
        ]
        results[kind] = getattr(client, kind)(instances, disable_tqdm=True)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
