"""The status page: one file, and what a browser makes of it."""

import json
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from urllib.parse import parse_qs, urlsplit

import pytest
from live_servers import live_server, tiny_llm

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


def test_status_says_what_the_page_draws(live):
    before = live.get("/status").json()
    since = before["launches"][-1]["number"] + 1 if before["launches"] else 0
    live.complete(
        list(range(260, 300)), max_tokens=6, exit_threshold=0.3, min_loops=1, ignore_eos=True
    )
    live.wait_until_idle()
    status = live.get(f"/status?since={since}").json()
    assert status["state"] == "ready"
    assert (status["num_slots"], status["num_loops"]) == (8, 4)
    assert sum(status["exit_depths"].values()) == sum(before["exit_depths"].values()) + 6
    assert status["tokens_per_second"] > 0
    numbers = [launch["number"] for launch in status["launches"]]
    assert numbers == list(range(since, since + len(numbers)))
    kinds = {
        (launch["kind"], item["kind"]) for launch in status["launches"] for item in launch["items"]
    }
    assert ("recurrent", "decode") in kinds
    assert any(item == "prompt" for _, item in kinds)
    statuses = [
        (launch["head"] is not None, item["status"])
        for launch in status["launches"]
        for item in launch["items"]
        if item["status"] is not None
    ]
    assert statuses.count((True, "left")) == 6
    assert all(has_head for has_head, _ in statuses)
    rows = sum(
        item["num_rows"] * launch["num_passes"]
        for launch in status["launches"]
        for item in launch["items"]
        if item["kind"] == "prompt"
    )
    assert rows == 4 * 40


def test_the_page_needs_nothing_from_elsewhere(live):
    response = live.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    addresses = re.findall(r"""(?:src|href|url|import)\s*[=(]\s*["']?([^"'\s)>]+)""", response.text)
    assert all(address.startswith(("#", "`#")) for address in addresses), addresses
    assert re.findall(r"https?://[^\"'`]+", response.text) == ["http://www.w3.org/2000/svg"]


def dump(url, *, milliseconds):
    """The page as it stands after so much time in a browser without a window."""
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--virtual-time-budget={milliseconds}",
        "--dump-dom",
        url,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_every_server_has_a_start_of_its_own(live, tiny_folder):
    starts = {live.get("/status").json()["start"] for _ in range(2)}
    with live_server(tiny_llm(tiny_folder), is_ready=False) as other:
        starts.add(other.get("/status").json()["start"])
    assert len(starts) == 2


def launch(number):
    row = {"kind": "decode", "num_rows": 1}
    item = row | {"slot": 0, "depth": 0, "status": "left"}
    ended = row | {"slot": 2, "depth": None, "status": None}
    chunk = {"slot": 1, "kind": "prompt", "num_rows": 2, "status": None}
    chunks = [ended, *(chunk | {"depth": depth} for depth in (1, 0))]
    shape = {"kind": "recurrent", "bucket": 8, "num_rows": 6, "num_passes": 1, "head": "greedy"}
    return {"number": number, "time": 0.0, **shape, "items": [item, *chunks]}


class Restarted(BaseHTTPRequestHandler):
    """The page, and the states of two servers: the second, with fewer launches, from a poll on."""

    num_polls = 0

    def do_GET(self):
        address = urlsplit(self.path)
        if address.path == "/status":
            Restarted.num_polls += 1
            start, count = ("first", 50) if Restarted.num_polls <= 2 else ("second", 5)
            since = int(parse_qs(address.query)["since"][0])
            body = json.dumps(
                {
                    "start": start,
                    "state": "ready",
                    "model": start,
                    "num_loops": 4,
                    "num_slots": 8,
                    "num_waiting": 0,
                    "num_active": 0,
                    "num_used_blocks": 0,
                    "num_blocks": 1,
                    "tokens_per_second": 0.0,
                    "exit_depths": {"1": 0, "2": 0, "3": 0, "4": 0},
                    "launches": [launch(number) for number in range(since, count)],
                }
            ).encode()
        else:
            body = files("looped.server").joinpath("status.html").read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; .ci/run installs it")
def test_the_page_goes_on_with_a_server_that_was_restarted():
    with ThreadingHTTPServer(("127.0.0.1", 0), Restarted) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            page = dump(f"http://127.0.0.1:{server.server_address[1]}/", milliseconds=4000)
        finally:
            server.shutdown()
            thread.join()
    assert Restarted.num_polls > 3
    assert 'id="model">second<' in page
    cells = re.findall(r"<rect [^>]*data-launch[^>]*>", page)
    assert len(cells) == 5 * 4
    heads = re.findall(r"<rect [^>]*data-head[^>]*>", page)
    assert len(heads) == 5
    assert all('data-head="greedy"' in head for head in heads)
    ended = [cell for cell in cells if 'data-depth="-1"' in cell]
    assert len(ended) == 5
    assert "rows that had ended" in page
    # Two chunks of one slot in one launch share its lane.
    places = {re.search(r' y="(\d+)" .*height="(\d+)"', cell).groups() for cell in cells}
    assert places == {("1", "12"), ("15", "6"), ("21", "6"), ("29", "12")}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; .ci/run installs it")
def test_a_browser_draws_lanes_queue_and_depths(tiny_folder):
    with live_server(tiny_llm(tiny_folder)) as live:
        body = {
            "prompt": [9] * 60,
            "n": 12,
            "seed": 4,
            "max_tokens": 150,
            "exit_threshold": 0.3,
            "min_loops": 1,
            "ignore_eos": True,
        }
        load = threading.Thread(target=live.post, args=("/v1/completions", body))
        load.start()
        try:
            page = dump(live.url + "/", milliseconds=1500)
        finally:
            load.join()
        live.complete([11] * 60, max_tokens=2, ignore_eos=True)
        live.wait_until_idle()
        page_after = dump(live.url + "/", milliseconds=1500)
    cells = re.findall(r"<rect [^>]*data-launch[^>]*>", page_after)
    assert len(cells) > 50
    fills = {re.search(r'fill="([^"]*)"', cell)[1] for cell in cells}
    assert any(fill.startswith("hsl") for fill in fills)
    assert re.search(r'<rect [^>]*fill="currentColor" data-head="conditional"', page_after)
    prompts = [cell for cell in cells if 'data-kind="prompt"' in cell]
    assert prompts
    assert all(re.search(r'fill="url\(#hatch-\d\)"', cell) for cell in prompts)
    assert 'data-state="ready"' in page_after
    assert re.search(r'id="running">\d / 8<', page)
    assert re.search(r'id="running">0 / 8<', page_after)
    assert re.search(r'id="waiting">0<', page_after)
    assert re.search(r'id="blocks">0 / 512<', page_after)
    assert re.search(r'id="rate">\d', page)
    counts = [int(count) for count in re.findall(r"<small>(\d+)</small>", page_after)]
    assert len(counts) == 4
    assert sum(counts) == 12 * 150 + 2
