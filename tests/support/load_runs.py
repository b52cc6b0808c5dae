"""Runs of a load with known times, as a client would have seen them."""

from looped.bench.serve.load_run import LoadRun
from looped.bench.serve.served_request import ServedRequest


def served(index, arrival, *, first=0.5, gaps=(0.1, 0.1), failure=None, lag=0.0, tail=0.0):
    times = [arrival + first]
    for gap in gaps:
        times.append(times[-1] + gap)
    return ServedRequest(
        index=index,
        arrival=arrival,
        sent=arrival + lag,
        ended=times[-1] + tail,
        chunk_times=tuple(times),
        prompt_tokens=10,
        output_tokens=len(times),
        failure=failure,
        detail="429: full" if failure else "",
    )


def load_run(*requests, name="run0", rate=2.0, **numbers):
    return LoadRun(name=name, rate=rate, requests=list(requests), **numbers)
