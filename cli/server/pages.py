"""The chat page at `/`: fixed files of this package, served with a policy that keeps them alone."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import APIRouter

FOLDER = Path(__file__).parent / "web"

CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# Only our own files run and only this server is talked to, whatever a model writes. Trusted types
# turn a forgotten innerHTML into an error instead of a hole.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

HEADERS = {
    "Cache-Control": "no-cache",  # kept, but asked about each time: upgrades show at once
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

RUNNING = b"llamba is running"
ROBOTS = b"User-agent: *\nDisallow: /\n"


@dataclass(frozen=True, slots=True)
class Page:
    """One file, ready to be sent."""

    body: bytes
    content_type: str

    @property
    def etag(self) -> str:
        """A strong tag: the same bytes, the same tag."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'


def load_pages() -> dict[str, Page]:
    """Every file of the page by name, read once: a request only ever picks from this table."""
    return {
        path.name: Page(path.read_bytes(), CONTENT_TYPES[path.suffix])
        for path in sorted(FOLDER.iterdir())
        if path.suffix in CONTENT_TYPES and path.is_file()
    }


def router() -> "APIRouter":
    """The routes `/`, `/web/{name}`, `/favicon.ico` and `/robots.txt`.

    A server with API keys asks for one here as well, by the browser's own dialog.
    """
    from fastapi import APIRouter, Request, Response

    pages = load_pages()
    tags = {name: page.etag for name, page in pages.items()}
    index = "index.html"
    routes = APIRouter(include_in_schema=False)

    def send(request: Request, name: str) -> Response:
        page = pages.get(name)
        if page is None:
            return Response("not found\n", 404, HEADERS, "text/plain; charset=utf-8")
        headers = HEADERS | {"ETag": tags[name]}
        known = request.headers.get("if-none-match", "")
        # A proxy that compresses makes the tag a weak one; for a GET that is good enough.
        if tags[name] in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(page.body, 200, headers, page.content_type)

    @routes.api_route("/", methods=["GET", "HEAD"])
    async def root(request: Request) -> Response:
        return send(request, index)

    @routes.api_route("/web/{name}", methods=["GET", "HEAD"])
    async def file(request: Request, name: str) -> Response:
        return send(request, name)

    @routes.api_route("/favicon.ico", methods=["GET", "HEAD"])
    async def favicon(request: Request) -> Response:
        return send(request, "icon.svg")

    @routes.api_route("/robots.txt", methods=["GET", "HEAD"])
    async def robots() -> Response:
        return Response(ROBOTS, 200, HEADERS, "text/plain; charset=utf-8")

    return routes


def plain_router() -> "APIRouter":
    """`/` without the page: clients of Ollama ask there whether somebody is at home."""
    from fastapi import APIRouter, Response

    routes = APIRouter(include_in_schema=False)

    @routes.api_route("/", methods=["GET", "HEAD"])
    async def root() -> Response:
        return Response(RUNNING, 200, HEADERS, "text/plain; charset=utf-8")

    return routes
