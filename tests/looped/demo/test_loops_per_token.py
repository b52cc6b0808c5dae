"""The example that `make demo` runs."""

import importlib.util
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "loops_per_token.py"


def load_example():
    spec = importlib.util.spec_from_file_location("loops_per_token", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_token_stands_above_its_loops():
    tokens = (" So", " 1", "2", ";", " answer", " 7", "<|endoftext|>", "\n")
    shown = load_example().two_lines(tokens, (4, 2, 2, 1, 3, 4, 1, 2))
    assert shown.splitlines() == [
        "  So 1 2 ; answer 7 <|endoftext|> ·",
        "   4 2 2 1      3 4             1 2",
    ]
