"""One file over HTTP: resumed after a break, hashed while it is written, never accepted by halves.

huggingface_hub resumes only inside one call; a download that was stopped would begin again (S6).
"""

import contextlib
import errno
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import DownloadError
from .cache_folder import CHUNK, settle

_ATTEMPTS = 5  # without a new byte; each byte that comes gives five more
_TIMEOUT_SECONDS = 30.0
_PAUSE_SECONDS = 0.5  # doubled with each attempt
_RETRIED = (408, 429, 500, 502, 503, 504)
_TRANSIENT = (OSError, http.client.HTTPException)


def new_digest(checksum: str, num_bytes: int) -> "hashlib._Hash | None":
    """The running hash that ends as `checksum`: SHA-256 (LFS), git's SHA-1, None for others."""
    if len(checksum) == 64:
        return hashlib.sha256()
    if len(checksum) == 40:
        return hashlib.sha1(b"blob %d\0" % num_bytes, usedforsecurity=False)
    return None


def bytes_kept(target: Path) -> int:
    """What an earlier `fetch` that was stopped left of `target`."""
    return _size(_partial_path(target))


def fetch(
    url: str,
    target: Path,
    *,
    num_bytes: int,
    checksum: str,
    authorization: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Download `url` to `target` by way of `target`.incomplete, which a later call resumes.

    checksum: hex, see new_digest. authorization: header for the address itself, not for where it
    redirects. progress(done_bytes). DownloadError: no connection, refused, wrong size or checksum.
    """
    partial = _partial_path(target)
    failures, pause = 0, _PAUSE_SECONDS
    while True:
        had = _size(partial)
        try:
            if had < num_bytes:
                _fetch_rest(url, partial, num_bytes, authorization, progress)
            if _size(partial) >= num_bytes:
                break
            reason = f"the connection broke at {_size(partial):,} of {num_bytes:,} bytes"
        except urllib.error.HTTPError as error:
            reason = f"the server answered {error.code} {error.reason}"
            if error.code not in _RETRIED:
                raise DownloadError(f"{url}: {reason}") from None
        except _TRANSIENT as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            reason = str(getattr(error, "reason", "") or error or type(error).__name__)
        if _size(partial) > had:
            failures, pause = 0, _PAUSE_SECONDS
        failures += 1
        if failures >= _ATTEMPTS:
            raise DownloadError(
                f"{url}: {reason}; {_size(partial):,} of {num_bytes:,} bytes are kept, "
                "the next pull goes on from there"
            )
        time.sleep(pause)
        pause *= 2
    _verify(partial, num_bytes, checksum, url)
    os.replace(partial, target)
    _validator_path(partial).unlink(missing_ok=True)


def _fetch_rest(
    url: str,
    partial: Path,
    num_bytes: int,
    authorization: str | None,
    progress: Callable[[int], None] | None,
) -> None:
    """One request: from where the partial file ends, or from the start if the server says so."""
    have = _size(partial)
    request = urllib.request.Request(url, headers={"User-Agent": "llamba"})
    request.add_header("Accept-Encoding", "identity")
    if authorization:
        # Unredirected: the token is for the hub, not for the storage it points to.
        request.add_unredirected_header("Authorization", authorization)
    if have:
        request.add_header("Range", f"bytes={have}-")
        with contextlib.suppress(OSError):
            request.add_header("If-Range", _validator_path(partial).read_text())
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
        goes_on = response.status == 206 and _range_start(response.headers) == have
        if response.status == 206 and not goes_on:
            partial.unlink()
            raise OSError(f"the server sent another range than {have}-")
        validator = response.headers.get("ETag", "")
        if validator.startswith('"'):  # a weak one is of no use for ranges
            _validator_path(partial).write_text(validator)
        with open(partial, "ab" if goes_on else "wb") as out:
            done = have if goes_on else 0
            while chunk := response.read1(CHUNK):
                out.write(chunk)
                done += len(chunk)
                if progress:
                    progress(min(done, num_bytes))
                if done > num_bytes:
                    return
            out.flush()
            settle(out.fileno())


def _range_start(headers: Mapping[str, str]) -> int:
    """The first byte that "Content-Range: bytes 600-999/1000" announces, -1 without one."""
    first = headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else -1


def _verify(partial: Path, num_bytes: int, checksum: str, url: str) -> None:
    """Remove a wrong file: to resume it would only keep what is wrong."""
    found = _size(partial)
    digest = new_digest(checksum, num_bytes)
    actual = checksum
    if digest is not None:
        with open(partial, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        actual = digest.hexdigest()
    if found != num_bytes or actual != checksum:
        partial.unlink()
        _validator_path(partial).unlink(missing_ok=True)
        raise DownloadError(
            f"{url}: wrong content ({found:,} bytes with checksum {actual}, expected {num_bytes:,} "
            f"with {checksum}); nothing was kept, pull it again"
        )


def _partial_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.incomplete")


def _validator_path(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.etag")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
