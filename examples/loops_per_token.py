"""The demo model solves held-out problems, with the loops of every token under it.

    python examples/loops_per_token.py [MODEL] [THRESHOLD]

Without MODEL it is the one that is installed with looped. The first token comes out of the prompt,
which runs every loop; a later one leaves once its exit probability reaches THRESHOLD, 0.98 unless
given.
"""

import sys

from looped.demo.answers import answers
from looped.demo.problems import held_out
from looped.demo.shipped import shipped_model
from looped.evaluation.demo import ENGINE
from looped.evaluation.loop_use import LoopUse
from looped.llm import LLM
from looped.sched import ExitOptions

NUM_PROBLEMS = 4
"""One of each difficulty."""


def two_lines(tokens, depths):
    """Tokens side by side, and under each the loops that it took."""
    shown = [token.strip() or "·" for token in tokens]
    widths = [max(len(text), 1) for text in shown]
    above = " ".join(f"{text:>{width}}" for text, width in zip(shown, widths, strict=True))
    below = " ".join(f"{depth:>{width}}" for depth, width in zip(depths, widths, strict=True))
    return f"  {above}\n  {below}"


def main(model=None, threshold="0.98"):
    llm = LLM(model or str(shipped_model()), config=ENGINE)
    exits = ExitOptions(threshold=float(threshold), min_loops=1)
    answered = answers(llm, held_out(NUM_PROBLEMS), exits)
    for answer in answered:
        done = answer.completion
        print(answer.problem.question)
        print(two_lines(done.tokens, done.exit_depths))
        print(f"  {'right' if answer.is_right else f'wrong: it is {answer.problem.answer}'}\n")
    num_loops = llm.engine.model_config.num_loops
    use = LoopUse.of((answer.completion for answer in answered), num_loops)
    if use.mean is not None:
        print(f"{use.mean:.2f} of {num_loops} loops a token, first tokens left out")


if __name__ == "__main__":
    main(*sys.argv[1:])
