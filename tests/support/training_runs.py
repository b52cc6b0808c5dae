"""Training runs for tests: their curves, and files of examples."""

import json
from pathlib import Path


def curve(run):
    """Metrics without times."""
    lines = (Path(run) / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def write_examples(file):
    """Nine examples as JSONL, in words that the tiny checkpoints' tokenizer has."""
    lines = [{"prompt": "the quick", "completion": f" brown fox {i}"} for i in range(9)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file
