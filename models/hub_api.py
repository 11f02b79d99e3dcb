"""The hub itself, through huggingface_hub (the extra `hub`): what is in a repository, and where."""

import os
import re
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..errors import DownloadError, LlambaError, ModelNotFoundError
from .hub_names import Reference


class RemoteFile(NamedTuple):
    """One file at the hub, as the cache keeps it (etag) and as it is fetched."""

    etag: str
    checksum: str  # SHA-256 for large files, else the etag
    num_bytes: int
    url: str


class Repository:
    """A repository at one commit. Opening it asks the hub; DownloadError, ModelNotFoundError."""

    def __init__(self, reference: Reference) -> None:
        try:
            import huggingface_hub
        except ImportError:
            raise DownloadError(
                f"{reference}: models of the hub need the package huggingface_hub: "
                "run `python -m pip install huggingface_hub`"
            ) from None
        self._hub = huggingface_hub
        self._reference = reference
        self._endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        api = huggingface_hub.HfApi(endpoint=self._endpoint)
        with _Translated(reference, self._endpoint):
            info = api.model_info(reference.repo, revision=reference.revision, files_metadata=True)
        self._files: dict[str, Any] = {
            file.rfilename: file for file in info.siblings or [] if _is_inside(file.rfilename)
        }
        self.commit: str = info.sha or ""
        if not re.fullmatch(r"[0-9a-f]{7,64}", self.commit):
            raise DownloadError(f"{reference}: the server gave no commit for {reference.revision}")

    @property
    def sizes(self) -> dict[str, int]:
        """The files, and their sizes as far as the hub lists them."""
        return {name: file.size or 0 for name, file in self._files.items()}

    def file(self, name: str) -> RemoteFile:
        """Where one file is, and what it must be."""
        url = self._hub.hf_hub_url(
            self._reference.repo, name, revision=self.commit, endpoint=self._endpoint
        )
        with _Translated(self._reference, self._endpoint):
            metadata = self._hub.get_hf_file_metadata(url)
        etag = metadata.etag or ""
        # It becomes a file's name in the cache.
        if not re.fullmatch(r"[\w-][\w.-]*", etag):
            raise DownloadError(f"{self._reference}: the server gave no usable ETag for {name}")
        lfs = self._files[name].lfs  # an object, in older versions a dictionary
        sha256 = lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)
        num_bytes = metadata.size or self.sizes[name]
        return RemoteFile(etag, sha256 or etag, num_bytes, metadata.location)

    def authorization(self, url: str) -> str | None:
        """The header for `url`: the user's token, if it is the hub that is asked."""
        token = self._hub.get_token() if _origin(url) == _origin(self._endpoint) else None
        return f"Bearer {token}" if token else None


def _is_inside(name: str) -> bool:
    """A name becomes a path in the cache; one that leads out of it is no name."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


class _Translated:
    """Whatever huggingface_hub and the HTTP client below it raise becomes one line of ours."""

    def __init__(self, reference: Reference, endpoint: str) -> None:
        self.reference, self.endpoint = reference, endpoint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        # The client was requests, then httpx, then another: their only common base is Exception.
        if not isinstance(error, Exception) or isinstance(error, LlambaError):
            return
        name = type(error).__name__
        if name == "GatedRepoError":
            raise DownloadError(
                f"{self.reference}: access is granted on request only: accept the terms at "
                f"{self.endpoint}/{self.reference.repo}, then set HF_TOKEN"
            ) from None
        if name in ("RepositoryNotFoundError", "HFValidationError"):
            raise ModelNotFoundError(
                f"{self.reference}: no such repository at {self.endpoint}; if it is private, set "
                "HF_TOKEN to a token that may read it"
            ) from None
        if name in ("RevisionNotFoundError", "EntryNotFoundError", "RemoteEntryNotFoundError"):
            what = f"revision {self.reference.revision}" if name[0:3] == "Rev" else "file"
            raise ModelNotFoundError(
                f"{self.reference}: no such {what} in this repository"
            ) from None
        reason = " ".join((str(error).strip().splitlines() or [name])[0].split())[:200]
        raise DownloadError(
            f"{self.reference}: {self.endpoint} can't be reached or refused ({reason}); check the "
            "network, or set HF_HUB_OFFLINE=1 to use what is cached"
        ) from None
