"""HEAD at every route, and API pages that need no network."""

import re
from urllib.parse import urljoin

import httpx
import pytest

CHANGING = {"date", "content-length"}
"""Headers that may differ from one answer to the next; numbers of /metrics have no fixed length."""
PARAMETERS = {"{name:path}": "ouro-tiny", "{name}": "ouro-tiny", "{path:path}": "favicon.png"}


def get_paths(routes, prefix=""):
    """Paths of all routes that answer GET, those inside of others too."""
    for route in routes:
        path = prefix + getattr(route, "path", "")
        inner = getattr(route, "routes", None) or getattr(
            getattr(route, "original_router", None), "routes", None
        )
        if inner:
            yield from get_paths(inner, path)
        elif getattr(route, "methods", None) is None:  # files
            yield path + "/favicon.png"
        elif "GET" in route.methods:
            for name, value in PARAMETERS.items():
                path = path.replace(name, value)
            yield path


def test_head_is_get_without_the_body_at_every_route(live):
    paths = set(get_paths(live.uvicorn.config.app.routes))
    assert paths >= {"/", "/docs", "/redoc", "/openapi.json", "/health", "/metrics", "/status"}
    assert paths >= {"/v1/models", "/v1/models/ouro-tiny", "/docs/assets/favicon.png"}
    for path in [*paths, "/v1/models/other", "/v1/completions", "/nowhere"]:
        get, head = live.get(path), httpx.head(live.url + path)
        assert head.status_code == get.status_code, path
        assert head.content == b""
        assert head.headers.keys() == get.headers.keys(), path
        for name in head.headers.keys() - CHANGING:
            assert head.headers[name] == get.headers[name], (path, name)
        assert int(head.headers["content-length"]) > 0
    statuses = {live.get(path).status_code for path in paths}
    assert statuses == {200}


def test_head_is_not_in_the_schema(live):
    schema = live.get("/openapi.json").json()
    assert {method for path in schema["paths"].values() for method in path} == {"get", "post"}


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_api_pages_take_nothing_from_elsewhere(live, page):
    html = live.get(page).text
    urls = re.findall(r"""(?:src|href)\s*=\s*["']([^"']+)["']""", html)
    assert len(urls) >= 2
    for url in urls:
        whole = urljoin(live.url + page, url)
        assert whole.startswith(live.url + "/"), url
        response = httpx.get(whole)
        assert response.status_code == 200
        assert response.content
    assert "://" not in re.sub(r"<a .*?</a>", "", html)
