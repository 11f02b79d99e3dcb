"""Makes a model file of other types from one: `llamba quantize`, from the plan to the last byte."""

import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .gguf_writer import DEFAULT_ALIGNMENT
from .output_targets import check_targets
from .progress import Progress
from .quantize_metadata import alignment_of, split_pairs
from .quantize_plan import Options, Plan, make_plan
from .shard_set import ShardContent, ShardSet, Written, shard_names
from .tensor_reader import TensorReader
from .tensor_stream import Maker, in_order

if TYPE_CHECKING:
    from .gguf import GGUFFile


@dataclass(frozen=True)
class Report:
    """What was made.

    seconds: without those of compiling kernels. num_read: bytes of the tensors' data in the source.
    """

    plan: Plan
    files: list[Written]
    seconds: float
    num_read: int = field(default=0)


def quantize_file(
    gguf: "GGUFFile",
    out: Path,
    options: Options,
    *,
    num_threads: int,
    overwrite: bool = False,
    progress: Progress = lambda event, done, total: None,
) -> Report:
    """Write `out` (with options.keep_split all its shards) from an open model.

    progress: called with "quantize" and bytes of the source, and with "compile" and counts. The
    errors are those of make_plan, and OutputError; then nothing of the output is there.
    """
    started = time.perf_counter()
    paths = out_paths(gguf, out, options.keep_split)
    check_targets(gguf, paths, overwrite)
    plan = make_plan(gguf, options)
    total, done = sum(t.source.num_bytes for t in plan.tensors), 0
    with (
        TensorReader(gguf) as reader,
        ShardSet(paths, _contents(gguf, plan), overwrite=overwrite) as files,
    ):
        before = time.perf_counter()
        maker = Maker(reader, plan.tensors, lambda d, n: progress("compile", d, n))
        started += time.perf_counter() - before  # kernels are compiled once: not of this file
        pieces = (piece for tensor in plan.tensors for piece in maker.pieces(tensor))
        progress("quantize", 0, total)
        with closing(in_order(pieces, num_threads)) as finished:
            for made in finished:
                files.write(made.planned.shard, made.data)
                done += made.num_read
                progress("quantize", done, total)
    return Report(plan, files.written, time.perf_counter() - started, total)


def out_paths(gguf: "GGUFFile", out: Path, keep_split: bool) -> list[Path]:
    """The files that will be written for a target's name."""
    if not keep_split or len(gguf.paths) == 1:
        return [out]
    stem = out.with_name(out.name.removesuffix(".gguf"))
    return shard_names(stem, len(gguf.paths))


def _contents(gguf: "GGUFFile", plan: Plan) -> list[ShardContent]:
    count = plan.num_shards
    contents = []
    for shard in range(count):
        pairs = list(plan.pairs) if shard == 0 else []
        if count > 1:
            pairs += split_pairs(shard, count, len(plan.tensors)).values()
        tensors = [t.new for t in plan.tensors if t.shard == shard]
        alignment = alignment_of(gguf) if shard == 0 else DEFAULT_ALIGNMENT
        contents.append(ShardContent(pairs, tensors, alignment))
    return contents
