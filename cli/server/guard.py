"""Which requests are heard at all: what Host and Origin say about who sends them (PAINS S3, S4).

A web page on any site can make the browser of somebody who runs llamba send requests here, and by
DNS rebinding even read the answers under a name of its own. So the name in Host must be ours, and a
page must be our own or one that was allowed.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, bad_request, dialect_of
from .replies import error_reply

_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:@/\\?#\s]+))(?::(\d{0,5}))?")
_TOKENS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,1000}")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_EXPOSED = b"x-request-id, request-id, x-llamba-ignored, retry-after"
_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"

# On every reply that does not set its own. Pages of other origins can neither show it in a frame
# nor load it as if it were a script or an image.
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """Refuses requests with a foreign Host or Origin; answers preflights; adds safe headers.

    Args:
        host: the address that the server is bound to.
        allowed_hosts: other names it has; "*.example.com" is all below it, "*" is any.
        allowed_origins: pages that may ask ("https://chat.example.com"); "*" is any.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._hosts = {each.lower().rstrip(".") for each in allowed_hosts}
        self._origins = {each.lower().rstrip("/") for each in allowed_origins}
        self._is_local = is_loopback(host)
        self._own = {host.lower().strip("[]")}
        if not self._is_local:
            name = socket.gethostname().lower()
            self._own |= {name, name.partition(".")[0], f"{name.partition('.')[0]}.local"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        extra: list[tuple[bytes, bytes]] = []

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                there = {name.lower() for name, _ in headers}
                headers += [each for each in _HEADERS if each[0] not in there]
                message = {**message, "headers": headers + extra}
            await send(message)

        try:
            host = self._check_host(scope)
            origin = self._check_origin(scope, host)
            if origin is not None:
                any_page = "*" in self._origins
                extra.append((b"access-control-allow-origin", b"*" if any_page else origin))
                extra.append((b"access-control-expose-headers", _EXPOSED))
                if not any_page:
                    extra.append((b"vary", b"Origin"))
                if _is_preflight(scope):
                    await guarded(_preflight(scope))
                    await guarded({"type": "http.response.body", "body": b""})
                    return
            _check_content_type(scope)
        except ApiError as error:
            await error_reply(error, dialect_of(scope["path"]))(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def _check_host(self, scope: Scope) -> str:
        """The Host header, which names us."""
        values = _values(scope, b"host")
        if len(values) != 1:
            raise bad_request("the request must have one Host header", code="invalid_host")
        text = values[0].decode("latin-1").strip().lower()
        match = _HOST.fullmatch(text)
        if match is None or int(match[3] or 0) > 65535:
            raise bad_request("the Host header is not a name or address", code="invalid_host")
        if not self._is_ours(match[1] or match[2].rstrip(".")):
            raise ApiError(
                403,
                f"this server does not answer to the host {text[:100]!r}: --allow-host allows it",
                "permission_error",
                "host_not_allowed",
            )
        return text.removesuffix(":")  # a port may be left empty

    def _is_ours(self, name: str) -> bool:
        if name in self._own or name in self._hosts or "*" in self._hosts or is_loopback(name):
            return True
        if any(each.startswith("*.") and name.endswith(each[1:]) for each in self._hosts):
            return True
        # No name, so no DNS that could lie; reached from elsewhere only if it was bound for that.
        return not self._is_local and _address(name) is not None

    def _check_origin(self, scope: Scope, host: str) -> bytes | None:
        """The Origin header of a page that was allowed; None without one, and for our own page."""
        values = _values(scope, b"origin")
        site = b"".join(_values(scope, b"sec-fetch-site")).lower()
        if "*" in self._origins:
            return values[0] if values else None
        if not values:
            if site in (b"", b"none", b"same-origin") or _is_link(scope):
                return None
            raise _foreign("another site's page")
        origin = values[0].decode("latin-1").strip().lower()
        if len(values) == 1 and origin != "null" and origin in self._origins:
            return values[0]
        if len(values) == 1 and _same_origin(origin, host) and site in (b"", b"same-origin"):
            return None
        raise _foreign(f"the origin {origin[:100]!r}")


def is_loopback(name: str) -> bool:
    """Whether a host name or address without brackets means this machine alone."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address is not None and address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _values(scope: Scope, wanted: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == wanted]


def _foreign(who: str) -> ApiError:
    return ApiError(
        403,
        f"requests of {who} are refused: --allow-origin allows it",
        "permission_error",
        "origin_not_allowed",
    )


def _same_origin(origin: str, host: str) -> bool:
    """Whether a page's origin is the host that it asks; its scheme may end at a proxy."""
    scheme, found, address = origin.partition("://")
    if not found or scheme not in _DEFAULT_PORTS:
        return False
    port = ":" + _DEFAULT_PORTS[scheme]
    return address.removesuffix(port) == host.removesuffix(port)


def _is_link(scope: Scope) -> bool:
    """Somebody follows a link on another site to the page: harmless, and wanted."""
    mode, target = _values(scope, b"sec-fetch-mode"), _values(scope, b"sec-fetch-dest")
    return scope["method"] in ("GET", "HEAD") and mode == [b"navigate"] and target == [b"document"]


def _is_preflight(scope: Scope) -> bool:
    asked = _values(scope, b"access-control-request-method")
    return scope["method"] == "OPTIONS" and bool(asked)


def _preflight(scope: Scope) -> Message:
    """A browser asks whether an allowed page may send a request; it never carries a key."""
    wanted = b", ".join(_values(scope, b"access-control-request-headers"))
    headers = [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", wanted if _TOKENS.fullmatch(wanted) else b""),
        (b"access-control-max-age", b"600"),
    ]
    if _values(scope, b"access-control-request-private-network") == [b"true"]:
        headers.append((b"access-control-allow-private-network", b"true"))
    return {"type": "http.response.start", "status": 204, "headers": headers}


def _check_content_type(scope: Scope) -> None:
    """Bodies are JSON. What a browser sends must say so, which no simple form can.

    `curl -d` without a header calls its body a form; it is JSON all the same.
    """
    has_body = any(
        (name == b"content-length" and value.strip() != b"0") or name == b"transfer-encoding"
        for name, value in scope["headers"]
    )
    if not has_body:
        return
    kinds = _values(scope, b"content-type")
    kind = kinds[0].partition(b";")[0].strip().lower() if kinds else b""
    if kind == b"application/json" or (
        kind.startswith(b"application/") and kind.endswith(b"+json")
    ):
        return
    is_browser = any(n == b"origin" or n.startswith(b"sec-fetch-") for n, _ in scope["headers"])
    if is_browser or kind.startswith(b"multipart/"):
        raise bad_request(
            "the body must be JSON, with the header Content-Type: application/json",
            code="unsupported_content_type",
        )
    others = [each for each in scope["headers"] if each[0] != b"content-type"]
    scope["headers"] = [*others, (b"content-type", b"application/json")]
