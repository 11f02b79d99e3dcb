"""A model's ops for a GPU: the layout of rows, with the device's matrices and buffers."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...models.weights import Weights
from ..kernels.cuda.launch import Matrix
from ..kernels.cuda.launches.attention import split_bytes
from ..kernels.records import FLOAT, MATMUL, NATURAL
from ..lowering import Lowering
from ..program import Op
from .arena import DeviceActivations, DeviceArena

if TYPE_CHECKING:
    from ..arena import Activations
    from .cache import DeviceKVCache
    from .ropes import DeviceRopes
    from .weights import DeviceWeights

# By the record's layout: the launch function, `file:function` of kernels/cuda/launches.
_LAUNCHES = {
    "Embed": "embedding:embed_rows",
    "Norm": "norm:norm_rows",
    "NormAdd": "norm:norm_add_rows",
    "Matmul": "matmul:matmul_rows",
    "Rope": "rope:rope_rows",
    "Attention": "attention:attention_rows",
    "Combine": "attention_combine:combine_rows",
    "Activate": "activation:activate_rows",
    "Route": "route:route",
    "Experts": "experts:experts_rows",
    "Merge": "experts:merge_rows",
    "Gather": "gather:gather_rows",
    "Slices": "slices:slices_rows",
}
_RENAMED = {"table_at": "table", "temperature_at": "temperature"}


class DeviceLowering(Lowering):
    """Emits the ops of a whole model.

    Args:
        matrices: the weights on the device.
        max_pieces: of attention: tokens times splits.
    """

    def __init__(
        self,
        weights: Weights,
        arena: DeviceArena,
        cache: "DeviceKVCache",
        ropes: "DeviceRopes",
        matrices: "DeviceWeights",
        logits: int,
        *,
        exact: bool,
        capacity: int,
        max_pieces: int,
        layers: range | None = None,
        states: int = 0,
    ) -> None:
        self.matrices, self._max_pieces = matrices, max_pieces
        self._device_arena = arena
        places: tuple[Any, Any] = cache, ropes  # they take the CPU's places
        super().__init__(
            weights,
            arena,
            *places,
            logits,
            exact=exact,
            capacity=capacity,
            layers=layers,
            states=states,
        )

    def op(
        self,
        kernel: str,
        layout: object,
        count: str = "num_tokens",
        barrier: bool = True,
        /,
        **fields: Any,
    ) -> Op:
        """An op by its launch function."""
        if "count_at" in fields:  # of pairs of a token and an expert
            count = "num_pairs"
            del fields["count_at"]
        kind = type(layout).__name__
        if kind == "Experts" and self.numbers.experts is not None:
            fields["used"] = self.numbers.experts.used
        named = {_RENAMED.get(name, name): value for name, value in fields.items()}
        return Op(_LAUNCHES[kind], layout, count, named, barrier)

    def rows_of(self, name: str, first: int = 0) -> dict[str, Any]:
        """The matrix, and the first row of it."""
        return {"matrix": self.matrices.matrix(self.matrix(name)), "first": first}

    def state_rows(self, states: int) -> dict[str, Any]:
        """The states of the layers before, as a matrix of float32."""
        return {"matrix": Matrix("f32", self.capacity, self.numbers.dim, states), "first": 0}

    def attention_buffers(self, max_splits: int) -> tuple[int, int, int]:
        """Pieces of the singles' attention; all tokens' results."""
        layers = self.own_layers
        sizes = [split_bytes(n.num_heads, n.value_dim, self._max_pieces) for n in layers]
        attended = self.buffer(max(n.num_heads * n.value_dim for n in layers))
        return self._device_arena.allocate(max(sizes)), attended, 0

    def beside_rows(self, attended: int, sinks: int) -> dict[str, Any]:
        """Where attention puts float32 results, and the sinks: it may be whole by itself."""
        return {"attended": attended, "sinks": sinks}

    def order(self, name: str, source_columns: int) -> int:
        """FLOAT where the device has a matrix of floats."""
        return NATURAL if self.matrices.kind(self.matrix(name)) == "bytes" else FLOAT

    def input(
        self, tag: str, columns: int, *consumers: str, tokens: int = 0, orders: int = 0
    ) -> Any:
        """The input that the named tensors read."""
        infos = [self.matrix(name) for name in consumers]
        kinds = {self.matrices.kind(info) for info in infos}
        routed = any("_exps" in info.name for info in infos)
        key = (columns, *sorted(kinds), tag, tokens, routed, orders)
        made: dict[Any, Any] = self._inputs
        if key not in made:
            made[key] = DeviceActivations.make(
                self._device_arena,
                tokens or self.capacity,
                columns,
                quantized="bytes" in kinds,
                half="half" in kinds,
                plain=bool(kinds & {"single", "half"}) or bool(orders & FLOAT),
                routed=routed,
            )
        return made[key]

    def matmul(
        self,
        name: str,
        source: "Activations | DeviceActivations",
        out: int,
        out_columns: int,
        *,
        residual: bool = False,
        barrier: bool = True,
        count: str = "num_tokens",
        softcap: float = 0.0,
        scale: float = 1.0,
        rows: tuple[int, int] | None = None,
        columns_at: int = 0,
        part: int | None = None,
    ) -> Op:
        """softcap(scale * (W x + bias) + residual); Builder.matmul documents the arguments."""
        assert isinstance(source, DeviceActivations)
        info = self.matrix(name)
        *_, num_rows, columns = (1, *info.shape)
        first, wanted = rows or (0, num_rows)
        skipped = (part or 0) * num_rows + first
        assert columns_at + columns <= source.columns, name
        return self.op(
            "matmul",
            MATMUL,
            count,
            barrier,
            **self.rows_of(name, skipped),
            num_rows=wanted,
            columns=columns,
            out=out,
            out_stride=4 * out_columns,
            bias=self.bias(name, skipped),
            factor=float(scale),
            residual=int(residual),
            softcap=float(softcap),
            **source.input_of(NATURAL, columns_at),
        )


def two_tails(lowering: DeviceLowering, logits: tuple[int, int]) -> tuple[list[Op], list[Op]]:
    """The ops to the logits, twice: steps that follow each other write to different places."""
    first = lowering.tail(lowering.hidden)
    second = [
        replace(op, fields={**op.fields, "out": logits[1]})
        if op.fields.get("out") == logits[0]
        else op
        for op in first
    ]
    return first, second
