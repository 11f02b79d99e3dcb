"""A mixture of experts as ops: the router, the chosen experts' blocks, their sum, the shared one.

In rows the pairs of a token and an expert it chose are rows, whatever the width of the other
matmuls. In lanes each expert's tokens are gathered into blocks of their own.
"""

from ..models.architecture import Experts
from ..quant import format_of
from .arena import Activations
from .kernels.records import ACTIVATE, EXPERTS, FLOAT, MERGE, REGROUP, ROUTE
from .lowering_base import Builder, chunk_of
from .lowering_ffn import DenseLowering, Result
from .program import Op


class ExpertsLowering:
    """Emits the mixture of a Builder's layout; all layers share its buffers."""

    def __init__(self, builder: Builder, experts: Experts) -> None:
        b, self._builder, self._experts = builder, builder, experts
        pairs = b.capacity * experts.used
        slots = pairs
        if b.lanes:  # an expert's last block may be nearly empty
            slots += min(experts.count, pairs) * (b.lanes - 1)
            slots = -(-slots // b.lanes) * b.lanes
        self.num_slots = slots
        allocate = b.arena.allocate
        self._logits = b.buffer(experts.count)
        self._chosen, self._weights = allocate(8 * pairs), allocate(4 * pairs)
        self._slots, self._active = allocate(8 * slots), allocate(24 * experts.count)
        self._cells = allocate(64, zeroed=True)  # active experts, then slots
        self._buffer = allocate(4 * slots * 2 * experts.ffn_dim)
        self._results = allocate(4 * pairs * b.numbers.dim)
        b.widest = max(b.widest, experts.count)
        self._shared = None
        if experts.shared_ffn_dim:
            self._shared = DenseLowering(b, experts.shared_ffn_dim, "_shexp")
            self._shared_gate = b.buffer(1) if b.architecture.shared_gate else 0

    # -- what the block reads --------------------------------------------------------------------
    def _name(self, layer: int, part: str) -> str:
        return self._builder.weights.name(layer, part)

    def _ups(self, layer: int) -> list[str]:
        """The experts' gate and up, or the one tensor that is both."""
        both = self._name(layer, "ffn_gate_up_exps")
        if self._builder.weights.optional(both) is not None:
            return [both]
        return [self._name(layer, "ffn_gate_exps"), self._name(layer, "ffn_up_exps")]

    def readers(self, layer: int, *, router: bool = True) -> list[str]:
        """The names of the matrices that read the block's input.

        router: whether the router reads the experts' input.
        """
        names = [self._name(layer, "ffn_gate_inp")] if router else []
        if self._shared is not None:
            names += self._shared.readers(layer)
            if self._shared_gate:
                names.append(self._name(layer, "ffn_gate_inp_shexp"))
        return names if self._builder.width else names + self._ups(layer)

    @property
    def orders(self) -> int:
        """What the block reads beside: with tokens side by side, the values as they are."""
        return FLOAT if self._builder.width else 0

    # -- the block -------------------------------------------------------------------------------
    def layer(
        self, layer: int, x: Activations, result: Result, *, routed_by: Activations | None = None
    ) -> list[Op]:
        """The whole block; `x` holds what `readers` read; routed_by: what the router reads."""
        b, shared = self._builder, self._shared
        alone = shared is None
        router = self._name(layer, "ffn_gate_inp")
        source, logits = routed_by or x, self._logits
        ops = [b.matmul(router, source, logits, self._experts.count, barrier=alone)]
        if shared is not None:
            if self._shared_gate:
                name = self._name(layer, "ffn_gate_inp_shexp")
                ops.append(b.matmul(name, x, self._shared_gate, 1, barrier=False))
            ops += shared.project(layer, x)
        gathered, regroup = self._gathered(layer, x)
        ops.append(self._route(layer, barrier=alone or bool(regroup)))
        if shared is not None:
            ops.append(shared.activate(layer, token_gate=self._shared_gate))
        ops += regroup
        ops += self._blocks(layer, gathered)
        merged = result
        if shared is not None:  # it writes first, then the experts are added
            ops.insert(-1, shared.down(layer, result, barrier=False))
            merged = Result(result.out, True, result.scale)
        return [*ops, self._merge(merged)]

    def _route(self, layer: int, *, barrier: bool) -> Op:
        b, e, weights = self._builder, self._experts, self._builder.weights

        def values(tensor: str, kind: str) -> int:
            name = weights.name(layer, tensor, kind)
            return b.arena.keep(weights.f32(name)) if weights.optional(name) is not None else 0

        return b.op(
            "route:route",
            ROUTE,
            "num_tokens",
            barrier,
            logits=self._logits,
            stride=b.stride(e.count),
            num_experts=e.count,
            used=e.used,
            gating=e.gating.value,
            normalize=int(e.normalize),
            groups=e.groups,
            groups_used=e.groups_used,
            scale=float(e.scale),
            select_bias=values("exp_probs_b", "bias"),
            expert_scale=values("ffn_down_exps", "scale"),
            lanes=int(bool(b.lanes)),
            out_experts=self._chosen,
            out_weights=self._weights,
            slots=self._slots,
            active=self._active,
            cells=self._cells,
        )

    def _gathered(self, layer: int, x: Activations) -> tuple[Activations, list[Op]]:
        """The experts' input, and the ops that make it of the tokens'."""
        b, dim = self._builder, self._builder.numbers.dim
        if not b.lanes and not b.width:
            return x, []
        tokens = self.num_slots if b.lanes else b.capacity
        into = b.input("experts", dim, *self._ups(layer), tokens=tokens)
        if not b.lanes:
            return into, [b.norm(x.plain, None, into)]
        pairs = {
            name: (source, target)
            for name in ("natural", "scale", "sums", "plain")
            if (source := getattr(x, name)) and (target := getattr(into, name))
        }
        op = b.op(
            "experts_lanes:regroup",
            REGROUP,
            columns=dim,
            divide=self._experts.used,
            slots=self._slots,
            count_at=self._cells + 8,
            **{name: source for name, (source, _) in pairs.items()},
            **{f"to_{name}": target for name, (_, target) in pairs.items()},
        )
        return into, [op]

    def _blocks(self, layer: int, x: Activations) -> list[Op]:
        """Every pair through its expert, to rows of results."""
        b, ffn_dim, names = self._builder, self._experts.ffn_dim, self._ups(layer)
        down = self._name(layer, "ffn_down_exps")
        y = b.input("experts_down", ffn_dim, down, tokens=self.num_slots)
        up = b.column(self._buffer, ffn_dim)
        ops = [
            self._matmul(name, x, at, 2 * ffn_dim, self._experts.used, barrier=name == names[-1])
            for name, at in zip(names, (self._buffer, up), strict=False)
        ]
        activate = b.op(
            f"activation:activate_{b.kind}",
            ACTIVATE,
            gate=self._buffer,
            up=up,
            stride=b.stride(2 * ffn_dim),
            columns=ffn_dim,
            kind=b.architecture.activation.value,
            count_at=self._cells + 8,
            **y.fields(),
        )
        results = self._matmul(down, y, self._results, b.numbers.dim, 1, by_pair=True)
        return [*ops, activate, results]

    def _matmul(
        self,
        name: str,
        source: Activations,
        out: int,
        out_columns: int,
        divide: int,
        *,
        by_pair: bool = False,
        barrier: bool = True,
    ) -> Op:
        """Each pair times its expert's matrix of a tensor of three dimensions."""
        b, info = self._builder, self._builder.matrix(name)
        _, rows, columns = info.shape
        fmt, order = format_of(info.type_id, name), b.order(name, columns)
        file = "experts_lanes" if b.lanes else "experts"
        kind = f"float_{b.kind}" if order == FLOAT else b.kind
        row_bytes = fmt.row_bytes(columns)
        op = b.op(
            f"{file}:experts_{kind}_{fmt.name.lower()}",
            EXPERTS,
            "num_tokens",
            barrier,
            **b.rows_of(name),
            expert_bytes=rows * row_bytes,
            num_rows=rows,
            columns=columns,
            chunk=chunk_of(row_bytes),
            out=out,
            out_stride=4 * out_columns if by_pair else b.stride(out_columns),
            by_pair=int(by_pair),
            divide=divide,
            used=self._experts.used,
            bias=b.bias(name),
            slots=self._slots,
            active=self._active,
            cells=self._cells,
            **source.input_of(order),
        )
        return b.reading(op, name, source)

    def _merge(self, result: Result) -> Op:
        b = self._builder
        return b.op(
            f"experts:merge_{b.kind}",
            MERGE,
            y=self._results,
            used=self._experts.used,
            weights=self._weights,
            columns=b.numbers.dim,
            out=result.out,
            residual=int(result.residual),
            factor=float(result.scale),
        )
