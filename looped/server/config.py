"""Options of the server, as a user gives them."""

from dataclasses import dataclass, field

from looped.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Where the server listens, whom it serves and how much it takes on.

    Raises:
        UsageError: naming the option, what is allowed and what came.
    """

    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 for all of this machine's."""
    port: int = 8000
    """Port to listen at; 0 takes a free one, which the log names."""
    api_key: str | None = field(default=None, repr=False, metadata={"envvar": "LOOPED_API_KEY"})
    """Key that clients must send as `Authorization: Bearer KEY`. None: no key is asked for."""
    allowed_origins: list[str] | None = None
    """Origin whose web pages may call this server, or `*`; repeatable. None: no other than its
    own."""
    served_model_name: str | None = None
    """Name of the model in requests and answers. None: as --model names it."""
    max_body_bytes: int = 4 * 2**20
    """Bytes of a request's body at most."""
    max_prompt_tokens: int | None = None
    """Tokens of a prompt at most. None: what the engine's max_model_len leaves."""
    max_concurrent_requests: int = 2048
    """Samples under way at once, running or waiting: each of a request's prompts counts n. Load
    generators send a thousand at once unless they are told otherwise."""
    request_timeout: float = 3600.0
    """Seconds that a request may take, waiting included: behind a thousand others, say."""
    drain_timeout: float = 30.0
    """Seconds that requests under way may take after SIGTERM."""
    restart_engine: bool = False
    """Build a new engine, once, if the engine dies."""
    keep_alive_seconds: float = 15.0
    """Seconds of silence, as while a long prompt is computed, after which a stream gets a comment
    line: clients skip it, and proxies keep the connection. 0 for none."""
    allow_exit_mode: bool = False
    """Let requests choose another exit mode than the engine's."""
    strict_fields: bool = False
    """Refuse requests with unknown fields; by default they are ignored, with one warning for each
    name."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port must be in 0 to 65535, got {self.port}")
        for name in ("max_body_bytes", "max_prompt_tokens", "max_concurrent_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        # Written so that NaN fails, too.
        if not 0 < self.request_timeout < float("inf"):
            raise UsageError(
                f"request_timeout must be above 0 seconds, and finite; got {self.request_timeout}"
            )
        if not 0 <= self.drain_timeout < float("inf"):
            raise UsageError(
                f"drain_timeout must be at least 0 seconds, and finite; got {self.drain_timeout}"
            )
        if not 0 <= self.keep_alive_seconds < float("inf"):
            raise UsageError(
                "keep_alive_seconds must be at least 0 seconds, where 0 means never, and finite; "
                f"got {self.keep_alive_seconds}"
            )
        for name in ("host", "api_key", "served_model_name"):
            if getattr(self, name) == "":
                raise UsageError(f"{name} must not be empty; leave it out instead")
        for origin in self.allowed_origins or ():
            if origin != "*" and "://" not in origin:
                raise UsageError(
                    "allowed_origins takes origins such as https://example.org, or *; "
                    f"got {origin!r}"
                )
