"""The GGUF container: one model from one file or from all its shards, tensors left in the map.

    with GGUFFile.open("model.gguf") as gguf:
        gguf.metadata["general.architecture"]
        gguf.tensors["token_embd.weight"].data      # uint8, read-only, nothing was copied

Opening checks every count, length and offset against the bytes present (gguf_shard.py); numbers of
the metadata are decoded at once, strings and arrays when they are asked for.
"""

import mmap
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ..errors import InvalidModelFileError, ModelNotFoundError
from .gguf_memory import lock_in_memory, read_privately
from .gguf_names import shard_paths
from .gguf_shard import Shard, unmap
from .gguf_types import TENSOR_TYPES, Metadata, Span, TensorInfo, TensorType

__all__ = ["TENSOR_TYPES", "GGUFFile", "TensorInfo", "TensorType", "shard_paths"]


class GGUFFile:
    """A model's container, open. Use `GGUFFile.open`; a context manager, `close()` may be repeated.

    path: the file, or the first shard. num_bytes: size of all shards.
    metadata: key -> int, float, bool, str, a numpy array, or a list of str (of bytes where one of
    them is not UTF-8). Arrays and strings are decoded on each access: keep what you use twice.
    tensors: name -> TensorInfo, in the order of the file(s).
    """

    def __init__(self, shards: list[Shard]) -> None:
        self.path: Path = shards[0].path
        self.paths: list[Path] = [shard.path for shard in shards]
        self.num_bytes: int = sum(shard.size for shard in shards)
        self._metadata: Metadata = shards[0].metadata
        self.tensors: dict[str, TensorInfo] = {}
        self._buffers: list[mmap.mmap] = [shard.buffer for shard in shards]
        self._starts = [np.frombuffer(b, np.uint8, 1).ctypes.data for b in self._buffers]
        self._private: list[mmap.mmap] = []  # by shard, once they are read
        self._header_lens = [shard.pos for shard in shards]
        self._pair_spans = shards[0].pair_spans
        for shard in shards:
            for name, tensor in shard.tensors.items():
                if name in self.tensors:
                    raise InvalidModelFileError(f"{shard.path}: tensor {name!r} is in two shards")
                self.tensors[name] = tensor

    @classmethod
    def open(cls, path: str | Path) -> "GGUFFile":
        """Open a model by its file or by any shard of it.

        ModelNotFoundError: no such file, or a shard is missing. InvalidModelFileError: not a sound
        GGUF file. UnsupportedModelError: GGUF v1, an unknown version, or big endian.
        """
        path = Path(path)
        paths = shard_paths(path)
        if len(paths) > 1:
            _check_present(path, paths)
        shards: list[Shard] = []
        try:
            for no, shard_path in enumerate(paths):
                shards.append(Shard(shard_path))
                _check_split(shards[-1], no, paths)
            _check_total(shards)
            return cls(shards)
        except BaseException:
            for shard in shards:
                shard.tensors.clear()
                unmap(shard.buffer)
            raise

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The keys of the file (of the first shard)."""
        return self._metadata

    def strings_bytes(self, key: str) -> list[bytes]:
        """The raw bytes of a string array (texts of tokens may be invalid UTF-8).

        KeyError: no such key. TypeError: it is not an array of strings.
        """
        return self._metadata.strings_bytes(key)

    def array_len(self, key: str) -> int | None:
        """The number of items of an array without decoding it; None for a single value."""
        value = self._metadata.values_by_key[key]
        return value.num_items if isinstance(value, Span) and value.is_array else None

    def raw_pairs(self) -> dict[str, bytes]:
        """The keys of the (first) file with the bytes of key, type and value as they lie there."""
        buffer = self._buffers[0]
        return {key: buffer[start:end] for key, (start, end) in self._pair_spans.items()}

    def place_of(self, tensor: TensorInfo) -> tuple[int, int]:
        """Where the bytes of a tensor of this file lie: number in `paths`, offset in that file."""
        at = tensor.data.ctypes.data
        for shard, start in enumerate(self._starts):
            if start <= at < start + len(self._buffers[shard]):
                return shard, at - start
        raise ValueError(f"{tensor.name} is not a tensor of {self.path}, or in memory")

    def headers(self) -> list[bytes]:
        """The bytes before the tensors' data, of every shard: metadata and table of tensors."""
        return [b[:n] for b, n in zip(self._buffers, self._header_lens, strict=True)]

    def read(self, update: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Read all tensors into private memory, from where they are served from now on.

        update: called with (done, total) bytes. InvalidModelFileError: the file can't be read.
        """
        done, total = 0, self.num_bytes - sum(self._header_lens)
        for path, buffer, start in zip(self.paths, self._buffers, self._header_lens, strict=True):
            size = len(buffer)
            memory = read_privately(
                path, start, size, lambda n, _, past=done: update(past + n, total)
            )
            self._private.append(memory)
            done += size - start
            there, here = np.frombuffer(buffer, np.uint8), np.frombuffer(memory, np.uint8)
            here.flags.writeable = False
            for name, tensor in self.tensors.items():
                at = tensor.data.ctypes.data - there.ctypes.data
                if tensor.num_bytes and 0 <= at < size:
                    data = here[at : at + tensor.num_bytes]
                    self.tensors[name] = replace(tensor, data=data)

    def lock(self, update: Callable[[int, int], None] = lambda done, total: None) -> str:
        """Keep the system from dropping tensors from memory; what was in the way, or ""."""
        held = self._private or self._buffers
        parts = [memoryview(b)[n:] for b, n in zip(held, self._header_lens, strict=True)]
        return lock_in_memory(parts, update)

    def close(self) -> None:
        """Let the file go. Tensor data still held elsewhere stays valid: its map goes with it."""
        self.tensors.clear()
        buffers, self._buffers, self._private = [*self._buffers, *self._private], [], []
        for buffer in buffers:
            unmap(buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({str(self.path)!r}, {len(self.tensors)} tensors, {self.num_bytes} bytes)"


def _check_present(path: Path, paths: list[Path]) -> None:
    """Name a missing shard before anything is read (PAINS P14)."""
    if not path.exists():
        raise ModelNotFoundError(f"{path}: no such file")
    missing = [shard for shard in paths if not shard.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelNotFoundError(
            f"{path}: the model is split into {len(paths)} files, but {missing[0].name}{more} "
            f"is missing from {path.parent}; copy it there, or make the shards again (llamba pull, "
            "or llamba split of the whole file)"
        )


def _check_split(shard: Shard, no: int, paths: list[Path]) -> None:
    """A shard must say of itself what its name says (PAINS P12, P13)."""
    values = shard.metadata.values_by_key
    count, own_no = values.get("split.count", 1), values.get("split.no", 0)
    if type(count) is not int or type(own_no) is not int:
        raise InvalidModelFileError(f"{shard.path}: split.count and split.no must be numbers")
    if len(paths) == 1 and count > 1:
        raise InvalidModelFileError(
            f"{shard.path}: this is shard {own_no + 1} of {count} under another name, or shards "
            "joined with `cat`; keep the shards' own names (-00001-of-0000N.gguf) and pass the "
            "first one, or merge them with `llamba merge`"
        )
    if len(paths) > 1 and (count != len(paths) or own_no != no):
        raise InvalidModelFileError(
            f"{shard.path}: named as shard {no + 1} of {len(paths)}, but the file says that it is "
            f"shard {own_no + 1} of {max(count, 1)}; get the file again"
        )


def _check_total(shards: list[Shard]) -> None:
    """`split.tensors.count` counts the tensors of all shards."""
    if len(shards) == 1:
        return
    present = sum(len(shard.tensors) for shard in shards)
    declared = shards[0].metadata.values_by_key.get("split.tensors.count", present)
    if declared != present:
        raise InvalidModelFileError(
            f"{shards[0].path}: split.tensors.count is {declared}, "
            f"but the {len(shards)} shards hold {present} tensors: they are not of one set; "
            "get all of them again"
        )
