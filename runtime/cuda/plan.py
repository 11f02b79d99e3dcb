"""What a step of so many tokens is on the device: ops to launches, for the sizes of a bucket."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ..kernels.cuda.launch import Fields, Mode, StepAddresses, StepShape, Work
from ..kernels.cuda.launches import experts, matmul
from ..kernels.cuda.launches.attention_combine import attention_to_activations
from ..program import Op

INT8_LIMIT = 8  # tokens of a step that are read one after the other where there are no tiles
# Ops that run together where they follow each other and this holds of the first and another one.
_MATMUL = "matmul:matmul_rows"
_JOINED = {_MATMUL: matmul.can_group, "experts:experts_rows": experts.can_join}
_HALF_STEP = 16  # tokens of a step for cuBLAS: a multiple
MAX_PIECES = 4096  # of attention: single tokens times splits


@dataclass(frozen=True, slots=True)
class Bucket:
    """The sizes of a step, rounded up so that few plans serve all steps.

    tokens: filled up. singles: the first so many tokens' attention is in `splits` pieces. tiles:
    pieces of chunks. outputs: rows of logits, 0: none. side: which of two places they go to.
    """

    tokens: int
    singles: int
    splits: int
    tiles: int
    outputs: int
    side: int

    @property
    def is_decode(self) -> bool:
        """All tokens are singles: worth a graph."""
        return self.tiles == 0


@dataclass(frozen=True, slots=True)
class Modes:
    """How many tokens are run how.

    tiles: most tokens of a step for tensor cores on tiles; 0: there are none.
    """

    tiles: int

    def mode(self, tokens: int) -> Mode:
        """Of a step filled up to so many tokens."""
        if self.tiles and 2 < tokens <= self.tiles:
            return Mode.TILES
        return Mode.INT8 if tokens <= (2 if self.tiles else INT8_LIMIT) else Mode.HALF

    def fill_up(self, tokens: int) -> int:
        """To a number of tokens that kernels take."""
        if self.tiles and 2 < tokens <= self.tiles:
            return -(-tokens // 8) * 8
        if tokens <= (2 if self.tiles else INT8_LIMIT):
            return 1 << (tokens - 1).bit_length()
        if tokens <= 256:
            return -(-tokens // _HALF_STEP) * _HALF_STEP
        return -(-tokens // 64) * 64


def fill_up_tiles(tiles: int) -> int:
    """Pieces of chunks: few different numbers."""
    if tiles <= 4:
        return tiles
    step = 1 << max(0, tiles.bit_length() - 3)
    return -(-tiles // step) * step


def fill_up_singles(singles: int) -> int:
    """Of steps that also have chunks: 0, 1, 2, 4, 8, ..."""
    return singles if singles < 2 else 1 << (singles - 1).bit_length()


class Planner:
    """Makes the work of buckets.

    Args:
        used: experts a token; 1 without.
        scratch: matmul.SCRATCH_BYTES for decoded weights.
    """

    def __init__(self, modes: Modes, *, used: int, scratch: int) -> None:
        self._modes, self._used, self._scratch = modes, used, scratch

    def plan(self, ops: Sequence[Op], bucket: Bucket, step: StepAddresses) -> list[Work]:
        """The launches of ops, one after the other."""
        shapes = self._shapes(bucket, step)
        works: list[Work] = []
        at = 0
        while at < len(ops):
            op, fields = ops[at], Fields(ops[at].fields)
            shape, at = shapes[op.count], at + 1
            if op.kernel == "attention:attention_rows":
                assert ops[at].kernel == "attention_combine:combine_rows"
                works += attention_to_activations(fields, Fields(ops[at].fields), shape)
                at += 1
                continue
            if op.kernel not in _JOINED:
                works += _launcher(op.kernel)(fields, shape)
                continue
            group = [fields]
            while at < len(ops) and ops[at].kernel == op.kernel and ops[at].count == op.count:
                more = Fields(ops[at].fields)
                if not _JOINED[op.kernel](fields, more):
                    break
                group.append(more)
                at += 1
            if op.kernel == _MATMUL:
                works += matmul.matmul_rows(group, shape, self._scratch)
            else:
                works += experts.experts_together(group, shape)
        return works

    def _shapes(self, bucket: Bucket, step: StepAddresses) -> dict[str, StepShape]:
        tokens = bucket.tokens
        body = StepShape(
            tokens=tokens,
            mode=self._modes.mode(tokens),
            singles=bucket.singles,
            splits=bucket.splits,
            tiles=bucket.tiles,
            step=step,
        )
        outputs = max(bucket.outputs, 1)
        return {
            "num_tokens": body,
            "num_pairs": replace(body, tokens=tokens * self._used),
            "num_outputs": replace(body, tokens=outputs, mode=self._modes.mode(outputs)),
        }


@cache
def _launcher(kernel: str) -> Callable[[Any, StepShape], list[Work]]:
    file, function = kernel.split(":")
    root = __name__.rsplit(".", 2)[0]
    return getattr(importlib.import_module(f"{root}.kernels.cuda.launches.{file}"), function)
