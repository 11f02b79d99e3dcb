"""API keys: who may ask."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator, Sequence
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from ...errors import InvalidParameterError
from .errors import ApiError, dialect_of
from .health import HEALTH_PATHS
from .replies import error_reply


class ApiKeys:
    """Lets requests pass that know a key; those about health need none.

    Args:
        keys: any of them will do. Empty: everybody passes.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or self._passes(scope):
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        is_page = scope["method"] == "GET" and (path == "/" or path.startswith("/web/"))
        error = ApiError(
            401,
            "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
            "authentication_error",
            "invalid_api_key",
            headers={"WWW-Authenticate": f'{"Basic" if is_page else "Bearer"} realm="llamba"'},
        )
        await error_reply(error, dialect_of(path))(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        if not self._digests:
            return True
        if scope["path"] in HEALTH_PATHS and scope["method"] in ("GET", "HEAD"):
            return True
        return any([self._is_key(given) for given in _given(scope)])

    def _is_key(self, given: bytes) -> bool:
        """Compared with every key: how long it takes tells neither which nor how much fits."""
        digest = _digest(given)
        return any([hmac.compare_digest(digest, each) for each in self._digests])


def read_keys(path: Path) -> tuple[str, ...]:
    """One key a line; empty lines and those that begin with # do not count."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InvalidParameterError(f"--api-key-file {path}: can't be read: {why}") from None
    keys = tuple(line.strip() for line in lines if line.strip() and line.strip()[0] != "#")
    if not keys:
        raise InvalidParameterError(f"--api-key-file {path}: there is no key in it")
    return keys


def _digest(key: bytes) -> bytes:
    """Equally long for all keys, so that comparing takes equally long as well."""
    return hashlib.sha256(key).digest()


def _given(scope: Scope) -> Iterator[bytes]:
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                yield rest.strip()
            elif scheme.lower() == b"basic":
                try:
                    yield base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
                except (binascii.Error, ValueError):
                    continue
