"""Settings in error messages, under the names that a user of the terminal types."""

import re
from functools import lru_cache

_ENGINE = {
    "context_length": "--ctx-size",
    "n_ctx": "--ctx-size",
    "num_threads": "--threads",
    "activations": "--activations",
    "chat_template": "--chat-template",
    "max_sequences": "--parallel",
    "kv_tokens": "--kv-tokens",
    "cache_type": "--cache-type",
    "prefix_cache": "--no-prefix-cache",
    "deterministic": "--deterministic",
    "memory_limit": "--memory-limit",
    "mmap": "--no-mmap",
    "mlock": "--mlock",
    "nice": "--nice",
    "background": "--background",
    "device": "--device",
    "gpu_layers": "--gpu-layers",
    "pooling": "--pooling",
    "dimensions": "--dimensions",
}
_SERVER = {
    "port": "--port",
    "max_queue": "--max-queue",
    "max_body_bytes": "--max-body",
    "idle_unload_s": "--keep-alive",
    "request_timeout_s": "--timeout",
    "shutdown_grace_s": "--shutdown-grace",
    "tls_cert": "--tls-cert",
    "tls_key": "--tls-key",
}


def in_flags(message: str, *, sampling: bool = True) -> str:
    """A message of the library with flags instead of Python arguments.

    A name with an underscore counts anywhere, others only before `=`.

    >>> in_flags("kv_tokens=5: must be at least 64; pass a smaller context_length")
    '--kv-tokens 5: must be at least 64; pass a smaller --ctx-size'
    """
    flags = _sampling() | _ENGINE | _SERVER if sampling else _ENGINE

    def flag(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if value is None:
            return flags[name] if "_" in name else name
        plain = re.fullmatch(r"""(['"])([\w.+:-]+)\1""", value)
        return f"{flags[name]} {plain[2] if plain else value}".rstrip()

    names = "|".join(flags)
    value = r"""'[^']*'|"[^"]*"|[^\s,;:]*"""
    return re.sub(rf"(?<![\w./-])({names})\b(?:=({value}))?", flag, message)


@lru_cache
def _sampling() -> dict[str, str]:
    from .options import SAMPLING

    return {name: max(flags, key=len) for name, flags, _, _ in SAMPLING}
