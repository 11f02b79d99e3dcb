"""Checks of where a file made from a model is to be written, before any work begins."""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidParameterError, OutputError
from .output_file import taken

if TYPE_CHECKING:
    from .gguf import GGUFFile


def is_one_of(path: Path, files: Iterable[Path]) -> bool:
    """Whether a path is one of some files, by whatever name; those that aren't there are not."""
    for file in files:
        with contextlib.suppress(OSError):
            if path.samefile(file):
                return True
    return False


def check_no_source(path: Path, sources: Iterable[Path]) -> None:
    """InvalidParameterError: what is to be written is a file that is read, --force or not."""
    if is_one_of(path, sources):
        raise InvalidParameterError(f"{path}: is read, and can't be written; name another file")


def check_targets(gguf: "GGUFFile", paths: Iterable[Path], overwrite: bool) -> None:
    """InvalidParameterError: one is a file of the source. OutputError: one exists already."""
    for path in paths:
        try:
            if not path.exists():
                continue
            check_no_source(path, gguf.paths)
        except OSError as error:  # no right to look, or too long a name
            raise OutputError(f"{path}: can't be written: {error.strerror}") from None
        if path.is_dir():
            raise OutputError(f"{path}: is a folder; name a file")
        if not overwrite:
            raise taken(path)
