"""The memory layouts that Python fills and kernels read: an op's record, and the step's header.

A field is eight bytes: an integer, an address, or a float32 in its low half. Kernels read
`load_i64(op + MATMUL.weight)`, where the attribute is the field's offset.
"""

from collections import namedtuple
from typing import Any

RECORD_BYTES = 320
_FIELD = 8


def _offsets(name: str, fields: str) -> Any:
    names = fields.split()
    assert len(names) * _FIELD <= RECORD_BYTES
    return namedtuple(name, names)(*(i * _FIELD for i in range(len(names))))


# Every op begins so. `barrier`: 1 when all threads must be done before the next op starts.
# `counter`: address of the op's work counter, zero at the start of a step.
# `count_at`: address of the number of tokens it handles.
_OP = "function barrier counter count_at "

# Where an op puts quantized activations: see quant/cpu/activations.py. An order that no consumer
# wants has address 0. `act_width`: 0, or how many tokens lie side by side (kernels/cpu/micro.py).
_ACT = (
    "act_columns act_natural act_pair16 act_scale act_sums act_pair32 act_pair_scale act_pair_sums "
    "act_float act_width "
)

OP = _offsets("Op", _OP)
# `position_rows`, `constant_row`: 0, or float32 to add, a row by position and one for all.
EMBED = _offsets(
    "Embed",
    _OP + "weight row_bytes columns scale out out_stride position_rows num_positions constant_row",
)
# `x_stride`: bytes to the next token; in lanes the columns of the whole buffer. `kind`: NORM_*.
# `out`: 0, or where the float32 values go as well, laid out as x; may be x itself.
NORM = _offsets("Norm", _OP + _ACT + "x x_stride weight bias eps columns kind out")
NORM_ADD = _offsets("NormAdd", _OP + "x x_stride weight bias eps columns kind y y_stride scale")
MATMUL = _offsets(
    "Matmul",
    _OP + "weight row_bytes num_rows columns chunk q q_stride scale scale_stride sums "
    "out out_stride bias factor residual softcap",
)
# `k_step`, `v_step`: from one head to the next, bytes or columns. `shared`: 0, or the address of
# the rotated part that all heads of K have in common. `norm_step`: bytes to the next head's
# weights. `temperature_at`: 0, or the cell of a table of q's factors by position.
ROPE = _offsets(
    "Rope",
    _OP
    + "q k v stride kv_stride k_step v_step shared shared_stride num_heads num_kv_heads key_dim "
    "value_dim rope_dim rope_offset kind table_at norm_kind q_norm k_norm q_bias k_bias norm_step "
    "v_norm eps q_scale temperature_at kv page_bytes head_bytes q_rows q_rows_stride",
)
# A query at p sees p - window + 1 (0: position 0) to its `ends`, at most p + ahead if that isn't 0.
# `slopes`, `sinks`: 0, or a float32 a query head.
_SEEN = "window ahead "
ATTENTION = _offsets(
    "Attention",
    _OP + _SEEN + "q stride num_kv_heads group key_dim value_dim softcap kv page_bytes head_bytes "
    "out out_stride split_stride slopes sinks",
)
COMBINE = _offsets(
    "Combine",
    _OP + _ACT + _SEEN + "partial split_stride num_heads head_dim out out_stride sinks",
)
# Without `up`: f(gate) if `alone`, else gate as it is. `token_gate`: 0, or where each token's
# float32 is whose sigmoid multiplies it.
ACTIVATE = _offsets("Activate", _OP + _ACT + "gate up stride columns kind alone token_gate")
# Router logits to experts. `stride`: as of a matmul's result. `out_experts` (int64) and
# `out_weights` (float32): [token][used], best first. The pairs of token and rank, numbered so,
# sorted by expert, are `slots` (int64); in lanes an expert's fill whole blocks, the last one
# repeated. `active`: for each expert that was chosen its number, its first slot (block), and how
# many. `cells`: how many of those there are, and how many slots.
ROUTE = _offsets(
    "Route",
    _OP + "logits stride num_experts used gating normalize groups groups_used scale select_bias "
    "expert_scale lanes out_experts out_weights slots active cells",
)
# A matmul of each chosen expert's own matrix. `divide`: a pair's row of the input is its number
# over this (its token, or itself). `by_pair`: in lanes, results go to rows of pairs. `used`: how
# many experts a token has (for GPUs).
EXPERTS = _offsets(
    "Experts",
    _OP + "weight row_bytes num_rows columns chunk q q_stride scale scale_stride sums out "
    "out_stride bias expert_bytes divide by_pair slots active cells used",
)
# In lanes: the activations of the slots' tokens, from and to arrays [block][words][lane].
REGROUP = _offsets(
    "Regroup",
    _OP + "columns divide slots natural scale sums plain to_natural to_scale to_sums to_plain",
)
# Of each token: factor * the sum of its experts' results by their weights, in order of rank.
MERGE = _offsets("Merge", _OP + "y used weights columns out residual factor")
GATHER = _offsets("Gather", _OP + "x x_stride columns out out_stride")
# `columns` columns of each head, the next one's `step` bytes (columns) further, to `out` (0: not),
# and as activations of heads * columns.
SLICES = _offsets("Slices", _OP + _ACT + "x x_stride step heads columns out out_stride out_step")
# Of each token the float32 at `x` times its scale. `stride`: as of a matmul's result. `scales`: a
# float32 a token.
ADAPT = _offsets("Adapt", _OP + "x stride columns scales")
# Sums over the step's tokens of the columns that a matrix product reads, float32 in lanes: their
# squares and their values, to float32 (columns). `stride`: columns of the whole buffer. Of an
# expert's matrix the tokens are its slots (see ROUTE), the sums (experts, columns), and `counts`
# grows by each one's tokens (int64).
COLLECT = _offsets("Collect", _OP + "x stride columns squares values slots active cells counts")
COLLECT_PART = 16  # columns a piece of work
ROPE_TABLE = _offsets("RopeTable", _OP + "table_at rope_dim out")

# The step's header. `num_threads`: those that take part in the step. `waits`: a cache line for
# each thread, the cycles that it waited long at barriers. `positions`, `ends` (the last position
# that a token may see), `tables` (addresses of int32 block tables): one a token, in lanes one a
# slot, empty ones included. In lanes, the first `num_packed` tokens are packed: each lane is a
# token of any sequence. Every block after theirs holds consecutive positions of one sequence.
# `valid`: tokens in each block. `out_rows`: the tokens whose logits are wanted: rows, or slots.
STEP = _offsets(
    "Step",
    "num_threads barrier job waits program num_ops scratch scratch_bytes num_tokens "
    "num_blocks num_packed num_outputs token_ids positions ends tables valid out_rows",
)

JOB_STEP = 1 << 12  # more than there are threads; see the interpreter

# Rotation kinds, as models/architecture.py's Rope, and norm kinds, as its Norm; NONE only copies.
ROPE_NONE, ROPE_NORM, ROPE_NEOX = 0, 1, 2
NORM_RMS, NORM_LAYER, NORM_NONE = 0, 1, 2

# Decode attention handles this many pages in one piece of work, whatever the thread count, so that
# the order of additions never depends on it.
SPLIT_PAGES = 16

# The order of int8 activations that a format's decode kernel reads (quant/cpu/activations.py).
NATURAL, PAIR32, PAIR16, FLOAT = 1, 2, 4, 8
ACTIVATION_ORDER = {
    "q4_0": NATURAL,
    "q4_1": NATURAL,
    "q5_0": NATURAL,
    "q5_1": NATURAL,
    "q8_0": NATURAL,
    "q4_k": PAIR32,
    "q5_k": PAIR32,
    "q6_k": NATURAL,
    "iq2_xxs": NATURAL,
    "iq2_xs": NATURAL,
    "iq2_s": NATURAL,
    "iq3_xxs": NATURAL,
    "iq3_s": NATURAL,
    "iq1_s": NATURAL,
    "iq1_m": NATURAL,
    "tq1_0": NATURAL,
    "tq2_0": NATURAL,
    "q2_k": NATURAL,
    "q3_k": NATURAL,
    "iq4_nl": NATURAL,
    "iq4_xs": PAIR16,
    "mxfp4": NATURAL,
}

PAGE = 32  # KV positions in a page
SPLIT = SPLIT_PAGES * PAGE  # and in a split
MAX_ROWS = 64  # tokens of a step in the layout of rows: decoded ones of so many sequences
# Weight rows that prefill unpacks at once: with 2 threads 32 divides the work of small matrices
# more evenly than 64 and costs nothing measurable.
TILE_ROWS = 32
MAX_GROUP = 8  # query heads of one KV head that decode attention handles at once
MAX_HEAD_DIM = 576  # DeepSeek's latent attention: its rank and the rotated part
