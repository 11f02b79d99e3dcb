"""Words of simt.py for tensor cores, and what brings matrices to them (compute capability 8.0)."""

from typing import Any

from ..cpu.vector import I32, Builder, Value
from .vocabulary import assembly, joined, plain, split, word


# ---- matrices ----------------------------------------------------------------------------------
# Fragments as PTX defines them for mma.m16n8k*: a thread is lane = 4 * g + t of its warp. A holds
# rows g and g + 8, B column g; the result c[0], c[1] row g, columns 2t and 2t + 1, c[2], c[3] row
# g + 8. s8: a[0], a[1] are rows g, g + 8 of k 4t..4t+3, a[2], a[3] of k 16+4t..; b[0] k 4t.., b[1]
# k 16+4t... f16: two values a word: a[0], a[1] rows g, g + 8 of k 2t, 2t+1, a[2], a[3] of k 8+2t..;
# b[0], b[1] alike.
def _mma(name: str, shape: str, operands: tuple[str, str, str]) -> Any:
    kind_a, kind_b, kind_c = operands
    element = kind_c.split("x")[0]

    def code(b: Builder, a: Value, x: Value, c: Value) -> Value:
        parts = [("i32", v) for v in (*split(b, a), *split(b, x))]
        parts += [(element, v) for v in split(b, c)]
        at, groups = 4, []
        for count in (int(k.split("x")[1]) for k in operands):
            groups.append("{" + ",".join(f"${at + i}" for i in range(count)) + "}")
            at += count
        text = f"mma.sync.aligned.{shape} {{$0,$1,$2,$3}}, {', '.join(groups)};"
        return joined(b, assembly(b, text, [element] * 4, parts, volatile=True))

    return word(name, operands, kind_c, code)


mma_s8 = _mma("mma_s8", "m16n8k32.row.col.s32.s8.s8.s32", ("i32x4", "i32x2", "i32x4"))
mma_u8s8 = _mma("mma_u8s8", "m16n8k32.row.col.s32.u8.s8.s32", ("i32x4", "i32x2", "i32x4"))


def _mma_s8_half(b: Builder, a: Value, x: Value, c: Value) -> Value:
    parts = [("i32", v) for v in (*split(b, a), x, *split(b, c))]
    text = "mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {$0,$1,$2,$3}, {$4,$5}, {$6}, "
    text += "{$7,$8,$9,$10};"
    return joined(b, assembly(b, text, ["i32"] * 4, parts, volatile=True))


# m16n8k16: a[0], a[1] are rows g, g + 8 of k 4t..4t+3, as is the word of B.
mma_s8_half = word("mma_s8_half", ["i32x2", "i32", "i32x4"], "i32x4", _mma_s8_half)
mma_f16 = _mma("mma_f16", "m16n8k16.row.col.f32.f16.f16.f32", ("i32x4", "i32x2", "f32x4"))


def _load_matrix(name: str, modifier: str) -> Any:
    def code(b: Builder, at: Value) -> Value:
        text = f"ldmatrix.sync.aligned.m8n8.x4{modifier}.shared.b16 {{$0,$1,$2,$3}}, [$4];"
        found = assembly(
            b, text, ["i32"] * 4, [("i32", b.trunc(at, I32))], volatile=True, memory=True
        )
        return joined(b, found)

    return word(name, ["i64"], "i32x4", code)


# Four 8 x 8 matrices of 16-bit values: thread 8i + j gives the shared address of row j of matrix i;
# thread 4g + t gets its values 2t, 2t+1 of row g (transposed: of rows 2t, 2t+1 of column g).
load_matrix, load_matrix_transposed = (
    _load_matrix("load_matrix", ""),
    _load_matrix("load_matrix_transposed", ".trans"),
)


def _copy_async(b: Builder, to: Value, source: Value) -> None:
    arguments = [("i32", b.trunc(to, I32)), ("i64", source)]
    text = "cp.async.cg.shared.global [$0], [$1], 16;"
    assembly(b, text, [], arguments, volatile=True, memory=True)


copy_async = word("copy_async", ["i64", "i64"], "", _copy_async)  # 16 bytes, global to shared
commit_copies = plain("commit_copies", "cp.async.commit_group;")


def wait_copies(pending: int) -> Any:
    """wait_copies(): until at most so many of this thread's committed groups are under way."""
    made = plain("wait_copies", f"cp.async.wait_group {pending};")
    made.pending = pending
    return made
