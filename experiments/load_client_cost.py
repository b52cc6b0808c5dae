"""How many tokens per second the load client of `looped bench serve` can read in time.

Question: up to which rate are the client's times those of the server?
Method: a process of its own answers every completion with 100 chunks of one token, 20 ms apart by
its clock, of about the size of looped's. The client plays Poisson arrivals at rising rates for 6 s.
Gaps between chunks as it saw them (20 ms is right), how late it sent, both in milliseconds, and its
CPU time per chunk in microseconds.

    python -P experiments/load_client_cost.py

Result (2026-11-30, 2 shared cores under load):

| requests/s | tokens/s | gap p50 | p95 | p99 | max | lag p95 | max | CPU per chunk |
|---|---|---|---|---|---|---|---|---|
| 10 | 679 | 20.0 | 21.8 | 23.9 | 29.1 | 1.2 | 3.4 | 191 |
| 25 | 1744 | 20.0 | 22.5 | 24.5 | 29.2 | 2.2 | 6.7 | 147 |
| 50 | 3610 | 20.0 | 24.5 | 28.5 | 36.8 | 7.4 | 14.6 | 128 |
| 100 | 2908 | 17.4 | 63.1 | 181.7 | 1053.8 | 12034.1 | 12244.9 | 228 |
| 200 | 2633 | 0.0 | 104.6 | 169.9 | 591.8 | 36151.1 | 37005.9 | 224 |

So one client is good for 3,500 tokens per second on such a core; beyond that it is seconds late,
and the rule `client_in_time` trips. Most of a chunk's cost is in httpx, httpcore and h11.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time

from looped.bench.serve.load_client import LoadClient
from looped.bench.serve.load_run import LoadRun
from looped.bench.serve.load_summary import Judgement, summarise_run
from looped.bench.serve.served_request import Objective
from looped.measure.arrivals import Prompt, poisson_arrivals

GAP, NUM_TOKENS = 0.020, 100
RATES = (10, 25, 50, 100, 200)
SECONDS = 6.0
COLUMNS = (
    *("requests/s", "tokens/s", "gap p50", "p95", "p99", "max"),
    *("lag p95", "max", "CPU per chunk"),
)


def event(num_tokens: int, reason: str | None) -> bytes:
    """A chunk of about the size of looped's, in HTTP's chunked coding."""
    usage = {"prompt_tokens": 8, "completion_tokens": num_tokens, "total_tokens": 8 + num_tokens}
    choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": reason}
    body = {"id": "cmpl-0123456789abcdef", "created": 1, "model": "fake", "choices": [choice]}
    data = f"data: {json.dumps(body | {'object': 'text_completion', 'usage': usage})}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Completions on one connection, until it is closed."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            start = loop.time()
            for token in range(NUM_TOKENS):
                await asyncio.sleep(start + GAP * (token + 1) - loop.time())
                writer.write(event(token + 1, "length" if token + 1 == NUM_TOKENS else None))
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve() -> None:
    """Listens on a free port, and prints it."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def measure(url: str, rate: float) -> str:
    """A row of the table."""
    prompts = [Prompt(tuple(range(8)), NUM_TOKENS)] * round(rate * SECONDS)

    async def play() -> LoadRun:
        async with LoadClient(url, model="fake") as client:
            arrivals = poisson_arrivals(prompts, rate, seed=0)
            return LoadRun(name="", rate=rate, requests=await client.play(arrivals))

    before = time.process_time()
    run = asyncio.run(play())
    cost = (time.process_time() - before) / (len(prompts) * NUM_TOKENS)
    summary = summarise_run(run, Judgement(objective=Objective()))
    assert summary.itl is not None
    assert summary.lag is not None
    assert not summary.failures
    itl, lag = summary.itl, summary.lag
    times = [1e3 * (x or 0) for x in (itl.p50, itl.p95, itl.p99, itl.largest, lag.p95, lag.largest)]
    cells = [
        f"{rate:.0f}",
        f"{summary.output_tokens_per_second:.0f}",
        *(f"{value:.1f}" for value in times),
        f"{1e6 * cost:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true")
    if parser.parse_args().serve:
        asyncio.run(serve())
        return
    command = [sys.executable, "-P", __file__, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            print(f"| {' | '.join(COLUMNS)} |")
            for rate in RATES:
                print(measure(url, rate))
        finally:  # it would serve for ever, and the block would wait for it
            server.kill()


if __name__ == "__main__":
    main()
