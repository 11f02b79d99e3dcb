"""One model file into shards and back, with the keys, names and limits of llama-gguf-split.

The first shard has all of the metadata; every one says which it is and of how many. Which tensors
come together: tools/gguf-split/gguf-split.cpp of llama.cpp (commit 0c1e570).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidParameterError
from .gguf_pairs import Pair, pairs_of
from .gguf_writer import DEFAULT_ALIGNMENT, NewTensor
from .output_targets import check_targets
from .progress import Progress
from .quantize_metadata import SPLIT_KEYS, alignment_of, split_pairs
from .shard_set import MAX_SHARDS, ShardContent, ShardSet, Written, shard_names
from .tensor_reader import TensorReader
from .tensor_stream import COPY_BYTES, in_order

if TYPE_CHECKING:
    from .gguf import GGUFFile, TensorInfo

_THREADS = 2  # one reads while another's bytes are written


@dataclass(frozen=True)
class Limits:
    """When a shard is full: bytes of tensors' data (0: no limit), or a number of tensors.

    bare_first: the first shard has the metadata only.
    """

    max_bytes: int = 0
    max_tensors: int = 128
    bare_first: bool = False


def plan_shards(tensors: Sequence["TensorInfo"], limits: Limits) -> list[list["TensorInfo"]]:
    """The tensors of each shard, in the order of the file.

    A tensor above the limit has a shard of its own. InvalidParameterError: too many shards.
    """
    shards: list[list[TensorInfo]] = [[], []] if limits.bare_first else [[]]
    num_bytes = 0
    for number, tensor in enumerate(tensors):
        padded = -(-tensor.num_bytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
        if limits.max_bytes:
            full = num_bytes + padded > limits.max_bytes
        else:
            full = number % limits.max_tensors == 0
        if full and shards[-1]:
            shards.append([])
            num_bytes = 0
        shards[-1].append(tensor)
        num_bytes += padded
    if len(shards) > MAX_SHARDS or len(shards) > 0xFFFF:  # split.count is a u16
        raise InvalidParameterError(f"{len(shards)} shards are too many: allow more in each")
    return shards


def split_file(
    gguf: "GGUFFile",
    prefix: Path,
    limits: Limits,
    *,
    overwrite: bool = False,
    progress: Progress = lambda event, done, total: None,
) -> list[Written]:
    """Write PREFIX-00001-of-0000N.gguf and so on; progress is called with "split".

    InvalidParameterError: the model is split already. OutputError: then no shard is there.
    """
    if len(gguf.paths) > 1:
        raise InvalidParameterError(
            f"{gguf.path}: is one of {len(gguf.paths)} shards; merge them first (`llamba merge`)"
        )
    shards = plan_shards(list(gguf.tensors.values()), limits)
    contents = shard_contents(gguf, shards)
    paths = shard_names(prefix, len(shards))
    return _copy(gguf, paths, contents, shards, overwrite, "split", progress)


def shard_contents(
    gguf: "GGUFFile", shards: Sequence[Sequence["TensorInfo"]]
) -> list[ShardContent]:
    """Metadata and tensors of each shard to be."""
    total = sum(map(len, shards))
    contents = []
    for no, tensors in enumerate(shards):
        pairs: list[Pair] = _own_pairs(gguf) if no == 0 else []
        keys = split_pairs(no, len(shards), total)
        pairs += [keys[key] for key in ("split.no", "split.tensors.count", "split.count")]
        alignment = alignment_of(gguf) if no == 0 else DEFAULT_ALIGNMENT
        contents.append(ShardContent(pairs, [_new(t) for t in tensors], alignment))
    return contents


def merge_file(
    gguf: "GGUFFile",
    out: Path,
    *,
    overwrite: bool = False,
    progress: Progress = lambda event, done, total: None,
) -> Written:
    """Write one file of all shards, as it was before the split; progress is called with "merge".

    InvalidParameterError: the model isn't split. OutputError: then `out` is not there.
    """
    if "split.count" not in gguf.metadata:
        raise InvalidParameterError(f"{gguf.path}: the model is not split, it is one file already")
    tensors = list(gguf.tensors.values())
    content = ShardContent(_own_pairs(gguf), [_new(t) for t in tensors], alignment_of(gguf))
    return _copy(gguf, [out], [content], [tensors], overwrite, "merge", progress)[0]


def _own_pairs(gguf: "GGUFFile") -> list[Pair]:
    return [p for p in pairs_of(gguf.raw_pairs()) if p.key not in SPLIT_KEYS]


def _new(tensor: "TensorInfo") -> NewTensor:
    return NewTensor(tensor.name, tensor.type_id, tensor.shape)


def _copy(
    gguf: "GGUFFile",
    paths: Sequence[Path],
    contents: Sequence[ShardContent],
    shards: Sequence[Sequence["TensorInfo"]],
    overwrite: bool,
    event: str,
    progress: Progress,
) -> list[Written]:
    check_targets(gguf, paths, overwrite)
    total, done = sum(t.num_bytes for t in gguf.tensors.values()), 0
    with TensorReader(gguf) as reader, ShardSet(paths, contents, overwrite=overwrite) as files:

        def pieces() -> Iterator[Callable]:
            for shard, tensors in enumerate(shards):
                for tensor in tensors:
                    for at in range(0, tensor.num_bytes, COPY_BYTES):
                        size = min(COPY_BYTES, tensor.num_bytes - at)
                        yield lambda s=shard, t=tensor, a=at, n=size: (s, reader.read(t, a, n))

        progress(event, 0, total)
        with closing(in_order(pieces(), _THREADS)) as finished:
            for shard, data in finished:
                files.write(shard, data)
                done += len(data)
                progress(event, done, total)
    return files.written
