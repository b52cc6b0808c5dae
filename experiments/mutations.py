"""Does the default suite notice when a rule breaks?

Question: of twenty faults, one line each, in exit rules, blocks, planes, masks, noise, admission,
scoring and the model, how many are caught by tests that `make test` runs?

Method: each mutation replaces one snippet of source, which must stand exactly once in the
checkout, in a copy of the checkout, and runs the tests of the folders that are named with it, as
`make test` would, up to the first failure. A mutation that no test notices survives, and the
command fails.

    python experiments/mutations.py            # all
    python experiments/mutations.py --only plane-copy --only causal-mask
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("looped", "sched", "pallas_kernels", "convert")
LINKS = ("sched", "pallas_kernels", "convert")
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "dist", "build", ".cache", "*.egg-info", "__pycache__"
)


@dataclass(frozen=True)
class Mutation:
    """One fault, and where its tests are."""

    name: str
    before: str
    after: str
    tests: tuple[str, ...]
    """Folders or files below tests/; the first that exists holds the likeliest one."""


ENGINE = ("engine", "looped")
SCHED = ("sched",)
PROGRAMS = ("programs", "looped", "engine")
MUTATIONS = (
    Mutation(
        "exit-threshold-inclusive",
        "if signal >= rule.threshold:",
        "if signal > rule.threshold:",
        SCHED,
    ),
    Mutation(
        "exit-delayed-at-once",
        "return ExitDecision.EXIT if rule.mode is ExitMode.OURO else ExitDecision.EXIT_NEXT",
        "return ExitDecision.EXIT",
        SCHED,
    ),
    Mutation(
        "survival-not-reset",
        "jnp.where(progress.depth == 0, 1.0, progress.survival)",
        "progress.survival",
        PROGRAMS,
    ),
    Mutation(
        "plane-copy",
        "is_skipped = is_real & (jnp.arange(num_loops) >= progress.depth[:, None])",
        "is_skipped = is_real & (jnp.arange(num_loops) > progress.depth[:, None])",
        PROGRAMS,
    ),
    Mutation(
        "ended-rows-write",
        "is_decode = (arrays.decode_slots < shape.max_num_seqs) & (progress.is_done == 0)",
        "is_decode = arrays.decode_slots < shape.max_num_seqs",
        PROGRAMS,
    ),
    Mutation(
        "device-forgets-length",
        "is_done = is_stop | (num_outputs >= options.max_tokens)",
        "is_done = is_stop | (num_outputs > options.max_tokens)",
        PROGRAMS,
    ),
    Mutation(
        "exit-foreseen-too-late",
        "if is_pending or loop >= last:",
        "if is_pending or loop > last:",
        SCHED,
    ),
    Mutation(
        "block-never-freed",
        "if entry is None:\n                self._free.extend(blocks)",
        "if entry is None:\n                pass",
        SCHED,
    ),
    Mutation(
        "block-freed-in-use",
        "if self._num_holders[group] > 0:\n                continue",
        "if self._num_holders[group] > 1:\n                continue",
        SCHED,
    ),
    Mutation(
        "prefix-takes-last-token",
        "num_blocks = (request.num_prompt_tokens - 1) // self.block_size",
        "num_blocks = request.num_prompt_tokens // self.block_size",
        SCHED,
    ),
    Mutation(
        "evicts-parents",
        "while entry.children:\n            entry = entry.children[0]",
        "while False:\n            entry = entry.children[0]",
        SCHED,
    ),
    Mutation(
        "admission-forgets-growth",
        "claim = required + blocks.num_reserved_blocks + headroom + cached_claim",
        "claim = required + headroom + cached_claim",
        SCHED,
    ),
    Mutation(
        "bypass-without-limit",
        "return request.num_bypasses >= self._config.admission_bypass_limit",
        "return False",
        SCHED,
    ),
    Mutation(
        "causal-mask",
        "[item] + row_of_item + 1, 0)",
        "[item] + row_of_item + 2, 0)",
        ("pallas_kernels", "engine", "looped"),
    ),
    Mutation(
        "layer-reads-layer-zero",
        "ids = ids + pools.first_block",
        "ids = ids + 0 * pools.first_block",
        ("pallas_kernels", "engine", "looped"),
    ),
    Mutation(
        "noise-of-output-index",
        "jax.random.fold_in(sample_key, output_index)",
        "jax.random.fold_in(sample_key, 0 * output_index)",
        PROGRAMS,
    ),
    Mutation(
        "noise-of-sample-index",
        "sample_key = jax.random.fold_in(key, sample_index)",
        "sample_key = jax.random.fold_in(key, 0 * sample_index)",
        PROGRAMS,
    ),
    Mutation(
        "penalty-counts-twice",
        '.add(ONE_OUTPUT, mode="drop")',
        '.add(2 * ONE_OUTPUT, mode="drop")',
        PROGRAMS,
    ),
    Mutation(
        "min-tokens-one-late",
        "is_held = (rows.output_index < rows.min_tokens)[:, None]",
        "is_held = (rows.output_index <= rows.min_tokens)[:, None]",
        PROGRAMS,
    ),
    Mutation(
        "score-shifted",
        "item.request, item.first_position + 1",
        "item.request, item.first_position",
        PROGRAMS,
    ),
    Mutation(
        "norms-swapped",
        "rows = rows + self.attention_output_norm(mixed)",
        "rows = rows + self.mlp_input_norm(mixed)",
        ("models", "looped", "engine"),
    ),
    Mutation(
        "no-norm-between-loops",
        "return self.final_norm(rows), cache",
        "return rows, cache",
        ("models", "looped", "engine"),
    ),
    Mutation(
        "stop-text-forgets-borders",
        "matched = borders[matched]\n            if text[matched] == character:",
        "matched = 0\n            if text[matched] == character:",
        ("text", "looped"),
    ),
)


def apply(mutation: Mutation, root: Path) -> Path:
    """Breaks the copy; SystemExit unless the snippet stands exactly once."""
    places = places_of(mutation, root)
    if len(places) != 1:
        found = [str(place.relative_to(root)) for place in places]
        sys.exit(f"{mutation.name}: expected its snippet once, found it in {found}")
    (place,) = places
    place.write_text(place.read_text().replace(mutation.before, mutation.after))
    return place.relative_to(root)


def places_of(mutation: Mutation, root: Path) -> list[Path]:
    """The files of a checkout that hold the snippet, each as often as it does."""
    files = [file for top in SOURCES for file in (root / top).rglob("*.py") if is_own(file, root)]
    return [file for file in files for _ in range(file.read_text().count(mutation.before))]


def is_own(file: Path, root: Path) -> bool:
    """Whether a file is seen under its own path, not through one of looped's links."""
    return file.relative_to(root).parts[:2] not in {("looped", link) for link in LINKS}


def survives(mutation: Mutation) -> tuple[bool, str]:
    """Runs the tests on a broken copy; whether all passed, and the last line they printed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_COPIED)
        place = apply(mutation, copy)
        tests = [copy / "tests" / name for name in mutation.tests]
        # `-P` keeps the copy's root, whose `sched` hides the standard library's, off the path: the
        # copy's package is found through a folder that holds nothing but a link to it.
        (copy / ".package").mkdir()
        (copy / ".package" / "looped").symlink_to(copy / "looped")
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        for test in (test for test in tests if test.exists()):
            done = subprocess.run(
                [*command, str(test)],
                cwd=copy,
                env=environment(copy),
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode not in (0, 5):
                failed = [line for line in done.stdout.splitlines() if "FAILED" in line]
                told = failed[-1] if failed else (done.stdout + done.stderr).strip()[-200:]
                return False, f"{place}: {told}"
    return True, f"{place}: nothing noticed"


def environment(copy: Path) -> dict[str, str]:
    """Ours, with the copy's package in front of the installed one."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "xla-tests"),
        "PYTHONPATH": str(copy / ".package"),
    }


def main() -> None:
    """Prints a line a mutation; exits with 1 if any survives."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [mutation.name for mutation in MUTATIONS]
    parser.add_argument("--only", action="append", choices=names, help="repeatable; default: all")
    only = parser.parse_args().only or names
    num_survivors = 0
    for mutation in (one for one in MUTATIONS if one.name in only):
        start = time.monotonic()
        is_alive, said = survives(mutation)
        num_survivors += is_alive
        verdict = "SURVIVES" if is_alive else "killed"
        print(f"{verdict} {mutation.name} ({time.monotonic() - start:.0f} s): {said}", flush=True)
    print(f"{len(only) - num_survivors} of {len(only)} killed")
    sys.exit(1 if num_survivors else 0)


if __name__ == "__main__":
    main()
