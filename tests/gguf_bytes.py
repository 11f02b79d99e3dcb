"""GGUF files byte by byte, so that tests can write what no writer would."""

import struct

U8, BOOL, STRING, ARRAY, U32 = 0, 7, 8, 9, 4


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: bytes | str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def tensor(
    name: bytes | str = "t", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0
) -> bytes:
    packed = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    return text(name) + packed


def gguf_bytes(
    pairs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = bytes(64),
    *,
    version: int = 3,
    num_tensors: int | None = None,
    num_pairs: int | None = None,
    alignment: int = 32,
) -> bytes:
    pairs, tensors = pairs or [], tensors or []
    raw = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(pairs) if num_pairs is None else num_pairs,
    )
    raw += b"".join(pairs + tensors)
    return raw + bytes(-len(raw) % alignment) + data
