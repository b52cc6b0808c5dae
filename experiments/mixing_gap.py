"""How much prompt work stands between two tokens of a decoder?

Question: a decoder runs P loops per token while long prompts arrive. How many passes over the
layers with prompt rows fall between two of its tokens, under each policy?
Method: the real scheduler on a stub that does no arithmetic (P = 4): one decoder of twelve tokens
beside two prompts of 200 tokens in chunks of 8; passes counted per gap while prompts run. Wall time
plays no part. `--svg FILE` draws the launches of one gap; docs/mixed-batching.svg is that drawing.

    python experiments/mixing_gap.py [--svg FILE]

Result (2026-12-01, any machine):

| policy | launches per gap | passes with prompt rows per gap, most |
|---|---|---|
| mixed | 4 | 4 |
| separate | 8 | 4 |
| atomic | 8 | 16 |
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from looped.sched import (
    Batch,
    ExitOptions,
    HeadResult,
    LaunchResult,
    Request,
    RowStatus,
    Scheduler,
    SchedulerConfig,
    resolve_exit,
)

NUM_PLANES = 4
POLICIES = ("atomic", "separate", "mixed")


@dataclass(frozen=True, eq=False)
class NoState:
    """Prompt state of a stub that keeps none."""


class NoStates:
    """The Scheduler's `PromptStateOwner` here."""

    def acquire(self, request: Request) -> NoState:
        return NoState()

    def release(self, handle: object) -> None:
        pass


def request_of(request_id: str, num_tokens: int, max_tokens: int) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(range(num_tokens)),
        max_tokens=max_tokens,
        exit_rule=resolve_exit(ExitOptions(), ExitOptions(), NUM_PLANES),
    )


def run_one(scheduler: Scheduler) -> Batch:
    """One launch, read at once; every row that may leave does, with token 0."""
    batch = scheduler.schedule()
    assert batch is not None
    count = len(batch.head_items)
    head = HeadResult(
        statuses=[RowStatus.LEFT] * count,
        loops=[item.known_depth + batch.num_passes for item in batch.head_items],
        token_ids=[0] * count,
        logprobs=[0.0] * count,
        is_finite=[True] * count,
    )
    scheduler.apply(batch, LaunchResult(head if count else None))
    return batch


def gaps_under(policy: str) -> list[list[Batch]]:
    """Launches between consecutive tokens of the decoder, while prompts run."""
    config = SchedulerConfig(
        num_planes=NUM_PLANES,
        vocab_size=512,
        num_blocks=4000,
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        prefill_chunk_size=8,
        prefix_caching=False,
        policy=policy,
    )
    scheduler = Scheduler(config, NoStates())
    decoder = request_of("decoder", 1, 12)
    scheduler.add(decoder)
    while not decoder.output_token_ids:
        run_one(scheduler)
    prompts = [request_of(name, 200, 1) for name in ("prompt a", "prompt b")]
    for prompt in prompts:
        scheduler.add(prompt)
    gaps: list[list[Batch]] = [[]]
    while decoder.finish_reason is None and not prompts[0].is_prompt_complete:
        num_tokens = len(decoder.output_token_ids)
        gaps[-1].append(run_one(scheduler))
        if len(decoder.output_token_ids) > num_tokens:
            gaps.append([])
    return gaps[1:-1]


def prompt_passes(batch: Batch) -> int:
    """Passes over the layers of a launch with prompt rows in it."""
    return batch.num_passes if batch.num_decode < len(batch.items) else 0


def draw(path: Path) -> None:
    """One gap per policy: a bar is a pass over the layers, a narrow one the head behind it."""
    width, head_width, height, left = 30, 8, 26, 96
    colours = {"decode": "#3b6ea8", "prompt": "#e0a458", "head": "#6a994e"}
    lines, top = [], 44
    most = 0
    for policy in POLICIES:
        gap = gaps_under(policy)[1]
        x = left
        lines.append(f'<text x="8" y="{top + 19}" class="name">{policy}</text>')
        for batch in gap:
            kinds = sorted({item.kind.name.lower() for item in batch.items})
            bars = [(width, kinds)] * batch.num_passes
            if batch.head_items:
                bars.append((head_width, ["head"]))
            for bar_width, names in bars:
                share = height / len(names)
                for index, name in enumerate(names):
                    y = top + index * share
                    lines.append(
                        f'<rect x="{x}" y="{y:.1f}" width="{bar_width}" height="{share:.1f}" '
                        f'fill="{colours[name]}" stroke="white"/>'
                    )
                x += bar_width
            x += 8
        most = max(most, x)
        top += 44
    legend = "".join(
        f'<rect x="{left + 150 * i}" y="12" width="12" height="12" fill="{colour}"/>'
        f'<text x="{left + 17 + 150 * i}" y="22">{label}</text>'
        for i, (label, colour) in enumerate(
            (("decode row", colours["decode"]), ("prompt rows", colours["prompt"]),
             ("LM head", colours["head"]))
        )
    )  # fmt: skip
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{most + 10}" height="{top}" '
        f'font-family="sans-serif" font-size="12">'
        f"<title>What stands between two tokens of a decoder, policy by policy</title>"
        f'<rect width="100%" height="100%" fill="white"/>'
        f"<style>.name{{font-weight:bold}}</style>{legend}{''.join(lines)}</svg>\n",
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--svg", type=Path, help="draw one gap of each policy")
    svg = parser.parse_args().svg
    print("| policy | launches per gap | passes with prompt rows per gap, most |")
    print("|---|---|---|")
    for policy in POLICIES[::-1]:
        gaps = gaps_under(policy)
        launches = max(map(len, gaps))
        passes = max(sum(map(prompt_passes, gap)) for gap in gaps)
        print(f"| {policy} | {launches} | {passes} |")
    if svg is not None:
        draw(svg)


if __name__ == "__main__":
    main()
