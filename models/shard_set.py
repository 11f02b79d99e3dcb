"""Writes the files of one model, one or all shards of it, so that all of them appear or none.

Shards get their names when all are on the disk, the first one last: whatever stops the program in
between leaves a set that lacks its first shard, which nobody loads, not one of old and new parts.
Files that they replace wait under other names until then, and get their own back on an error.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from ..errors import InvalidParameterError, OutputError
from .gguf_pairs import Pair
from .gguf_writer import DEFAULT_ALIGNMENT, GGUFWriter, NewTensor
from .output_file import Bytes, taken

MAX_SHARDS = 99_999  # five digits in the name


class ShardContent(NamedTuple):
    """What one file will hold. alignment: as its `pairs` say it, else 32."""

    pairs: list[Pair]
    tensors: list[NewTensor]
    alignment: int = DEFAULT_ALIGNMENT


class Written(NamedTuple):
    """A file that was published."""

    path: Path
    num_bytes: int
    sha256: str


class ShardSet:
    """A context manager: without an error all files are published at its end, else none.

    Room for all of them is reserved at once. OutputError: as GGUFWriter's.
    """

    def __init__(
        self, paths: Sequence[Path], contents: Sequence[ShardContent], *, overwrite: bool = False
    ) -> None:
        self._writers: list[GGUFWriter] = []
        self._overwrite = overwrite
        self._at = 0
        self._complete = False  # all have their names
        self._older: list[tuple[Path, Path]] = []  # (name, where it waits), the first shard first
        self.written: list[Written] = []
        _allow_open_files(len(paths))
        try:
            for path, content in zip(paths, contents, strict=True):
                writer = GGUFWriter(
                    path,
                    content.pairs,
                    content.tensors,
                    overwrite=overwrite,
                    alignment=content.alignment,
                )
                self._writers.append(writer)
        except BaseException:
            self._discard()
            raise

    def write(self, shard: int, data: Bytes) -> None:
        """Append to the tensor of a shard whose turn it is; shards come one after the other."""
        while self._at < shard:
            self._writers[self._at].finish()  # on the disk while the next one is made
            self._at += 1
        self._writers[shard].write(data)

    def _publish(self) -> None:
        for writer in self._writers:
            writer.finish()
        first, *others = self._writers
        for writer in self._writers if not self._overwrite else ():  # nobody made one meanwhile?
            if os.path.lexists(writer.path):
                raise taken(writer.path)
        if others and self._overwrite:  # a single file is replaced at once
            for writer in self._writers:  # without its first shard an older set ends to be one
                if older := writer.set_aside():
                    self._older.append(older)
        for writer in (*reversed(others), first):
            writer.publish()
        self._complete = True
        for _, waits in self._older:
            with contextlib.suppress(OSError):  # the next writer of this name removes it
                waits.unlink()
        self.written = [Written(w.path, w.num_bytes, w.sha256) for w in self._writers]

    def _undo(self) -> None:
        """Take the new names away and give the old files theirs, the first shard's last."""
        for writer in self._writers:  # one may have its name though `publish` didn't return
            writer.withdraw()
        for path, waits in reversed(self._older):
            try:
                os.replace(waits, path)
            except OSError as error:
                raise OutputError(
                    f"{path}: the file that had this name can't get it back "
                    f"({error.strerror}); it is {waits}: rename it"
                ) from None

    def _discard(self) -> None:
        for writer in self._writers:
            writer.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._publish()
        except BaseException:
            if not self._complete:
                self._undo()
            raise
        finally:
            self._discard()


def shard_names(prefix: Path, count: int) -> list[Path]:
    """PREFIX-00001-of-0000N.gguf and its siblings. InvalidParameterError: it has no name.

    >>> [path.name for path in shard_names(Path("m"), 2)]
    ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf']
    """
    if not prefix.name:
        raise InvalidParameterError(
            f"{prefix}: is a folder; give the beginning of the shards' names, as in "
            f"{prefix / 'model'}"
        )
    return [
        prefix.with_name(f"{prefix.name}-{no:05d}-of-{count:05d}.gguf")
        for no in range(1, count + 1)
    ]


def _allow_open_files(count: int) -> None:
    """All shards are open at a time: raise the limit as far as we may."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
