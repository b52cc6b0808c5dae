"""How good does the demo model become, by its own recipe, and what do adaptive exits cost it?

Method: the three stages of `looped train` with their defaults (docs/training.md), one after the
other, then `looped eval demo --full` of what came out: 1,000 held-out problems under every policy,
depth and threshold. The model goes to RUNS/model, with a card (README.md) whose numbers are the
evaluation's. Each stage is run with --resume: after a kill the same command goes on where it was, a
finished stage takes seconds, and one that was begun with other options or inputs is refused.

    python experiments/train_demo.py --runs runs/demo

The model that is installed with looped is made with --model looped/demo/model --overwrite.

ARGUMENTS are split as a shell would: --pretrain "--steps 6000 --seed 1".

Result: the card of the model that is installed, looped/demo/model/README.md (2026-11-30, two shared
cores of an AMD EPYC, no GPU): 8.9, 86.3, 95.0 and 95.5 % right at P = 1 to 4, and 95.2 % at 2.33
mean loops with threshold 0.98.
"""

import argparse
import json
import logging
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from looped.convert.staging import check_destination, staged_folder
from looped.demo.expressions import LARGEST
from looped.demo.problems import FULL_COUNT, ITEMS, NAMES, held_out
from looped.errors import LoopedError
from looped.evaluation.demo import MIN_LOOPS, THRESHOLDS
from looped.loading import load_folder
from looped.models import family_of, num_parameters
from looped.training.digests import model_digests, text_digest

logger = logging.getLogger("train_demo")

STAGES = ("pretrain", "gate", "lookahead")
MAX_PARAMETERS, MAX_BYTES = 3_000_000, 8_000_000

CARD = """# looped-demo

A looped language model of {parameters:,} parameters in {family}'s architecture: {layers} layer(s),
run {loops} times a token. It solves arithmetic problems in words and spells the steps. It is there
to show and to test an inference engine, and of no other use.

    looped generate "Ada has 5 pens. Ada finds 3 more. How many pens does Ada have now?"
    looped generate "What is 4 + 3 * 2?" --exit-threshold {threshold:g} --min-loops {min_loops}

Threshold {threshold:g} with at least {min_loops} loop(s) is the one to use. What it saves
stands below, under "Adaptive exits".

## Data

Problems of one to four steps with numbers from 0 to 99, made by `looped.demo.problems` as training
needs them: stories, comparisons, expressions, a quarter of them as chats of one question. No other
text. One chain of steps in eight is held out, in every wording and with the operands of + and * in
either order. Single steps are not: those of a held-out problem occur inside longer training
problems.

It knows these forms, letter for letter, with one space between words and around signs:

    What is (4 + 3) * 2?
    Work out 14 * 2 - 7.
    Ada has 5 pens. Ada finds 3 more. Ada gives away 2. How many pens does Ada have now?
    Ben has 12 coins. Ada has 3 times as many coins as Ben. Eve has 3 fewer coins than Ada. How many
    coins does Eve have?

with the names {names}, and {items}. Things are bought, found and got; given
away, lost and sold; or end up as so many times as many. There is +, - and *, and no number above
{largest} or below 0, on the way either.

## Recipe

Three stages, seed {seed}, in {minutes:.0f} minutes of updates in all ({updates} updates). All
options stand in `run.json` of each run; docs/training.md has the objectives.

{commands}

All of it, with this card: `{command}`.

{report}
## Limits

* Whatever else it is asked, it answers in the same form, wrongly: other names and things, "3+4"
  without spaces, a space at the end, larger numbers, division, a second question in one chat.
* At full depth it gets {wrong} of {problems} held-out problems wrong. The worst difficulty is
  {hardest} steps: {hardest_share:.1f} % right.
* It has seen sequences of at most {sequence_length} tokens.
"""


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True, help="folder of the three runs")
    parser.add_argument("--model", type=Path, help="where the model goes; RUNS/model unless given")
    parser.add_argument("--overwrite", action="store_true", help="replace that model")
    for name in (*STAGES, "eval"):
        parser.add_argument(f"--{name}", default="", metavar="ARGUMENTS", help="more options of it")
    given = parser.parse_args()
    model = given.model or given.runs / "model"
    options = {
        name: shlex.split(getattr(given, name)) for name in ("pretrain", "gate", "lookahead")
    }
    try:
        check_destination(model, source=None, overwrite=given.overwrite)
        commands = train(given.runs, options)
        result = evaluate(given.runs, shlex.split(given.eval))
        ship(given.runs, result, model, commands, overwrite=given.overwrite)
    except LoopedError as error:
        sys.exit(f"train_demo: {error}")


def stage_commands(runs, options):
    """Arguments of the three stages, each from the model of the one before."""
    before, commands = None, {}
    for stage, more in options.items():
        command = ["train", stage, "--task", "demo", "--out", str(runs / stage)]
        if before is not None:
            command += ["--model", str(before), "--dtype", "float32"]
        commands[stage] = [*command, *more]
        before = runs / stage / "model"
    return commands


def train(runs, options):
    """Runs the stages, or what is left of them; returns their commands."""
    commands = stage_commands(runs, options)
    for command in commands.values():
        _looped(*command, "--resume")
    return commands


def evaluate(runs, options):
    """Evaluates the last stage's model, unless that was done; returns the folder of the report."""
    model = runs / "lookahead" / "model"
    digests = [model_digests(model)["weights_sha256"][:12], _questions_digest()]
    name = "_".join([*digests, *options]).replace("/", "-")
    out = runs / f"evaluation-{name}"
    if not out.exists():
        size = [] if "--n" in options else ["--full"]
        _looped("eval", "demo", "--model", str(model), *size, *options, "--out", str(out))
    return out


def _questions_digest():
    """Of what an evaluation asks by default: other problems or exits are another evaluation."""
    return text_digest(repr((held_out(FULL_COUNT), THRESHOLDS, MIN_LOOPS)))[:8]


def ship(runs, result, destination, commands, *, overwrite):
    """Puts the model and its card in their place, if it is small enough."""
    source = runs / "lookahead" / "model"
    config = load_folder(source).config
    if num_parameters(config) > MAX_PARAMETERS:
        raise LoopedError(
            f"{source} has {num_parameters(config)} parameters, at most {MAX_PARAMETERS} ship"
        )
    with staged_folder(destination, source=source, overwrite=overwrite) as staged:
        shutil.copytree(source, staged, dirs_exist_ok=True)
        card = model_card(config, runs, result, commands)
        (staged / "README.md").write_text(card, encoding="utf-8")
        size = sum(file.stat().st_size for file in staged.iterdir())
        if size > MAX_BYTES:
            raise LoopedError(f"{source} with its card has {size} bytes, at most {MAX_BYTES} ship")
    logger.info("%s: %d parameters, %d bytes", destination, num_parameters(config), size)


def model_card(config, runs, result, commands):
    """README.md out of what the runs and the evaluation measured."""
    values = json.loads((result / "result.json").read_text())
    page = (result / "result.md").read_text()
    full = values["depths"][-1]
    shares = {steps: part["share"] for steps, part in full["accuracy_by_difficulty"].items()}
    hardest = min(shares, key=shares.get)
    recommended = values["thresholds"][0]["threshold"]
    updates = [_lines(runs / stage / "metrics.jsonl") for stage in commands]
    pretraining = json.loads((runs / "pretrain" / "run.json").read_text())
    return CARD.format(
        family=family_of(config).name,
        parameters=num_parameters(config),
        layers=config.num_layers,
        loops=config.num_loops,
        seed=pretraining["seed"],
        sequence_length=pretraining["sequence_length"],
        minutes=sum(line["seconds"] for lines in updates for line in lines) / 60,
        names=", ".join(NAMES),
        items=", ".join(ITEMS),
        largest=LARGEST,
        updates=" + ".join(str(len(lines)) for lines in updates),
        commands="\n".join(f"    {shlex.join(['looped', *part])}" for part in commands.values()),
        command=shlex.join(["python", "experiments/train_demo.py", *sys.argv[1:]]),
        report=f"{_facts(values)}\n{page[page.index('## Policies') :]}",
        problems=values["num_problems"],
        wrong=values["num_problems"] - full["accuracy"]["num_right"],
        hardest=hardest,
        threshold=recommended,
        min_loops=values["min_loops"],
        hardest_share=100 * shares[hardest],
    )


def _facts(values):
    device = f"{values['processor']}, {values['num_cores']} cores, {', '.join(values['devices'])}"
    versions = f"Python {values['python']}, JAX {values['jax']}, looped {values['looped']}"
    return (
        f"Measured on {values['num_problems']} held-out problems in {values['dtype']} by "
        f"`{values['command']}`; {values['date'][:10]}, {device}; {versions}.\n"
    )


def _lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def _looped(*arguments):
    logger.info("looped %s", shlex.join(arguments))
    done = subprocess.run([sys.executable, "-P", "-m", "looped", *arguments], check=False)
    if done.returncode:
        raise LoopedError(
            f"looped {' '.join(arguments[:2])} ended with {done.returncode}; see above"
        )


if __name__ == "__main__":
    main()
