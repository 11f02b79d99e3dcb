"""A model's ops in lanes, and those that sum what its matrix products read (cpu/collect.py).

The fast path rounds what a product reads to int8 in the op that makes it. Here that op leaves the
float32 values beside, as it does for adapters, and they are summed before the first product that
reads them: the sums are of exactly what was rounded, and the rest of the pass is as it always is.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidModelFileError
from ..models.importance import Sums
from .arena import Activations
from .kernels.records import COLLECT, COLLECT_PART, EXPERTS, FLOAT
from .lowering import Lowering
from .program import Op

_LAYERS = "blk."  # llama-imatrix collects no other tensors, but for the output when asked


@dataclass(frozen=True)
class Reading(Op):
    """The op of a matrix product, which tensor's, and where what it reads lies in float32.

    part: which of a dense tensor's matrices.
    """

    tensor: str = ""
    part: int = 0
    x: int = 0
    stride: int = 0  # columns of the buffer
    source: int = 0  # address of the buffer


@dataclass(eq=False)
class Input:
    """Sums of one input: of the current step in float32, of all of them in float64.

    All are (parts, columns), a part for each expert, else one. counts: int64 (parts,), tokens of
    each expert; None: all tokens.
    """

    step: NDArray[np.float32]  # (2, parts, columns): squares, values
    counts: NDArray[np.int64] | None
    total: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.total = np.zeros(self.step.shape, np.float64)

    def take(self) -> None:
        """Add the step's sums to the total."""
        self.total += self.step
        self.step.fill(0)


class CollectingLowering(Lowering):
    """Lowers a model in lanes; `inputs` says which sums belong to a tensor, matrix by matrix."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self.lanes, "sums are made of tokens in lanes"
        self.inputs: dict[str, dict[int, Input]] = {}
        self._made: list[Input] = []
        self._instead: dict[int, int] = {}  # buffer -> the one that has its values ungated

    def input(
        self, tag: str, columns: int, *consumers: str, tokens: int = 0, orders: int = 0
    ) -> Activations:
        """As float32 beside, whatever the tensors read."""
        return super().input(tag, columns, *consumers, tokens=tokens, orders=orders | FLOAT)

    def reading(
        self,
        op: Op,
        name: str,
        source: Activations,
        columns_at: int = 0,
        part: int | None = None,
    ) -> Op:
        """The op, with what it reads."""
        return Reading(
            op.kernel,
            op.layout,
            op.count,
            op.fields,
            op.barrier,
            tensor=self.matrix(name).name,
            part=part or 0,
            x=source.plain + 4 * columns_at * self.lanes,
            stride=source.columns,
            source=source.plain,
        )

    def body(self) -> list[Op]:
        """The pass, each input summed once, before the first of its products."""
        ops: list[Op] = []
        summed: dict[tuple[int, int, int], Input] = {}  # by buffer, where it begins, columns
        for op in super().body():
            if isinstance(op, Reading) and op.tensor.startswith(_LAYERS):
                key = op.source, op.x, op.fields["columns"]
                if key not in summed:
                    summed[key] = self._new_input(op)
                    ops.append(self._collect(op, summed[key]))
                self.inputs.setdefault(op.tensor, {}).setdefault(op.part, summed[key])
            if op.fields.get("token_gate"):
                ops.append(self._ungated(op))
            ops.append(op)
            # What an op writes is the next input in its buffer.
            written = op.fields.get("act_float"), op.fields.get("to_plain")
            summed = {key: found for key, found in summed.items() if key[0] not in written}
        return ops

    def _ungated(self, op: Op) -> Op:
        """A non-linearity as its product would read it without a token's factor.

        The factor of a shared expert's result is applied to what its last matrix reads: the same,
        but not what llama.cpp multiplies.
        """
        columns = op.fields["columns"]
        into = self.input("ungated", columns)
        self._instead[op.fields["act_float"]] = into.plain
        fields = {**op.fields, **into.fields(), "token_gate": 0}
        return replace(op, fields=fields, barrier=False)

    def _new_input(self, op: Reading) -> Input:
        columns, parts = op.fields["columns"], 1
        if op.layout is EXPERTS:
            parts = self.matrix(op.tensor).shape[0]
        step = np.zeros((2, parts, columns), np.float32)
        counts = np.zeros(parts, np.int64) if op.layout is EXPERTS else None
        for array in (step, counts):
            if array is not None:
                self.arena.keep(array)
        self._made.append(Input(step, counts))
        return self._made[-1]

    def _collect(self, op: Reading, into: Input) -> Op:
        squares, values = into.step
        experts = {}
        if into.counts is not None:
            experts = {key: op.fields[key] for key in ("slots", "active", "cells")}
            experts["counts"] = into.counts.ctypes.data
        return self.op(
            "collect:collect_experts_lanes" if experts else "collect:collect_lanes",
            COLLECT,
            "num_tokens",
            False,  # until the product that follows is done, nobody writes there
            x=self._instead.get(op.source, op.source) + op.x - op.source,
            stride=op.stride,
            columns=op.fields["columns"],
            squares=squares.ctypes.data,
            values=values.ctypes.data,
            **experts,
        )

    @property
    def scratch_bytes(self) -> int:
        """What a thread needs of its own: a float32 a slot, and the sums of a piece of work."""
        slots = self._experts.num_slots if self._experts is not None else 0
        return -(-(4 * max(slots, self.capacity) + 8 * COLLECT_PART * self.lanes) // 4096) * 4096

    def take(self) -> None:
        """After a step: its sums to the totals."""
        for made in self._made:
            made.take()

    def sums(self, tensor: str, num_tokens: int) -> Sums:
        """What was collected for a tensor. InvalidModelFileError: it is not finite."""
        parts = self.inputs[tensor]
        of = [parts[part] for part in sorted(parts)]
        squares, values = np.concatenate([made.total for made in of], axis=-1)
        if not np.isfinite(squares).all():
            raise InvalidModelFileError(
                f"{self.weights.gguf.path}: the input of {tensor} is not finite on this text; "
                "the file is damaged, or the model can't run in float32"
            )
        counts = of[0].counts
        counts = np.array([num_tokens], np.int64) if counts is None else counts.copy()
        return Sums(squares.astype(np.float32), counts, values.astype(np.float32))
