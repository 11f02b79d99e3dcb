"""ServerSettings: what the server is told, checked at the door."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InvalidParameterError

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """All limits and switches of one server. Raises InvalidParameterError naming the setting."""

    # Where it listens and who may ask.
    host: str = "127.0.0.1"
    port: int = 8080
    allowed_hosts: tuple[str, ...] = ()  # beside loopback names and the address it is bound to
    allowed_origins: tuple[str, ...] = ()  # foreign web pages that may ask; "*" is any
    api_keys: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None

    # Models: name -> what LLM() takes. Empty: every model of the local cache, by its name there.
    models: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of LLM
    # LoRA adapters by the model's name: files and scales.
    lora: Mapping[str, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    idle_unload_s: float | None = 1800.0  # None: models stay
    memory_limit: int | None = None  # bytes of all loaded models together; None: the machine's

    # Limits of one request.
    max_body_bytes: int = 16 * MIB
    max_tokens_limit: int | None = None  # most tokens a request may ask for; None: the context
    max_n: int = 16  # answers of one request
    max_stops: int = 16
    max_logprobs: int = 20
    max_inputs: int = 2048  # texts of an embeddings request, prompts of a completions request
    max_tools: int = 128
    request_timeout_s: float | None = 600.0  # after which a request ends with what there is
    max_queue: int = 64  # requests that may wait for a place; more are refused with 503
    read_timeout_s: float = 30.0  # for the head and body of a request to arrive

    # Behaviour.
    merge_roles: bool = False  # join neighbouring messages of one role before templates see them
    strict: bool = False  # unknown request fields are refused, not reported in a header
    # Between two chunks of a stream at least; 0 gives each token one. A model that makes 200 tokens
    # a second would spend a tenth of its time on telling them apart (docs/LOG.md).
    stream_interval_s: float = 0.01
    ping_s: float = 15.0  # silence after which a stream gets a comment, so that proxies wait
    shutdown_grace_s: float = 30.0  # that streams get to finish after SIGTERM
    web: bool = True  # the page at /
    access_log: bool = True
    log_file: Path | None = None  # of the log's lines; None is stderr

    def __post_init__(self) -> None:
        """Check what can be checked without the machine."""
        if not 0 <= self.port <= 65535:
            raise InvalidParameterError(f"port={self.port}: must be from 0 (any free) to 65535")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidParameterError("tls_cert and tls_key: give both, or none of them")
        for name in ("max_body_bytes", "max_n", "max_stops", "max_inputs", "max_tools"):
            if getattr(self, name) < 1:
                raise InvalidParameterError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("max_queue", "max_logprobs", "shutdown_grace_s", "idle_unload_s"):
            if (getattr(self, name) or 0) < 0:
                raise InvalidParameterError(f"{name}={getattr(self, name)}: must not be negative")
        for name in ("request_timeout_s", "read_timeout_s", "ping_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidParameterError(f"{name}={value}: must be more than 0, or None")
        if any(not key for key in self.api_keys):
            raise InvalidParameterError("api_keys: an empty key would let everybody in")
