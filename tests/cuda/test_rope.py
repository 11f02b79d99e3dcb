"""Rotation, head norms and the way into pages, against float64."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from llamba.models.architecture import Rope, Rotation
from llamba.runtime.kernels.cuda.launch import Fields, Mode, StepAddresses, StepShape
from llamba.runtime.kernels.cuda.launches.rope import rope_rows
from llamba.runtime.kernels.records import NORM_LAYER, NORM_RMS
from llamba.runtime.kernels.reference_math import rotate

PAGE, EPS, LENGTH = 32, 1e-5, 80
TYPES = {"f16": np.float16, "f32": np.float32, "q8_0": np.uint8}
BYTES = {"f16": 64, "f32": 128, "q8_0": 34}  # of 32 values
POSITIONS = [0, 31, 32, 77, 5]
PAGES = [[3, 0, 6], [1, 5, 2]]  # of two sequences
SEQUENCES = [0, 0, 0, 0, 1]


def put(device: Any, array: NDArray) -> int:
    """An array on the device."""
    at = device.allocate(array.nbytes)
    device.write(at, np.ascontiguousarray(array))
    return at


def normed(x: NDArray, kind: int | None, weight: Any, bias: Any) -> NDArray[np.float64]:
    """The norm of heads (tokens, heads, columns) in float64."""
    if kind is None:
        return x
    if kind == NORM_LAYER:
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


class Case:
    """An op with random inputs. norm: None, or NORM_*."""

    def __init__(
        self,
        device: Any,
        *,
        heads: int = 3,
        kv_heads: int = 2,
        key_dim: int = 64,
        value_dim: int = 48,
        rotation: Rotation | None = None,
        kv_type: str = "f16",
        norm: int | None = None,
        own_norms: bool = False,
        bias: bool = False,
        v_norm: bool = False,
        shared: bool = False,
        temperature: bool = False,
        v_is_k: bool = False,
    ) -> None:
        rng = np.random.default_rng(7)
        self.device, self.kv_type, self.dims = device, kv_type, (key_dim, value_dim)
        self.heads, self.kv_heads, tokens = heads, kv_heads, len(POSITIONS)
        offset = rotation.offset if rotation else 0
        plain = offset if shared else key_dim  # K's columns beside q
        q = rng.standard_normal((tokens, heads, key_dim), np.float32)
        k = rng.standard_normal((tokens, kv_heads, plain), np.float32)
        v = k if v_is_k else rng.standard_normal((tokens, kv_heads, value_dim), np.float32)
        turned = rng.standard_normal((tokens, 1, key_dim - plain), np.float32)
        row = np.concatenate([x.reshape(tokens, -1) for x in (q, k, v, turned)], axis=1)
        base, stride = put(device, row), row.shape[1] * 4
        k_at = base + heads * key_dim * 4
        v_at = k_at if v_is_k else k_at + kv_heads * plain * 4
        weights, biases = rng.standard_normal((2, 2, max(heads, kv_heads), key_dim), np.float32)
        if not own_norms:
            weights, biases = weights[:, :1], biases[:, :1]
        key_room, value_room = (-(-d // 32) * 32 for d in self.dims)
        self.each = PAGE // 32 * BYTES[kv_type] * (key_room + value_room)
        self.pages = np.full((7, kv_heads, self.each), 77, np.uint8)
        self.kv = put(device, self.pages)
        fields: dict[str, Any] = {
            "q": base, "k": k_at, "v": v_at, "stride": stride, "kv_stride": stride,
            "k_step": plain * 4, "v_step": (plain if v_is_k else value_dim) * 4,
            "num_heads": heads, "num_kv_heads": kv_heads, "key_dim": key_dim,
            "value_dim": value_dim, "v_norm": int(v_norm), "eps": EPS, "q_scale": 0.25,
            "kv": self.kv, "kv_type": kv_type, "page_bytes": self.pages[0].nbytes,
            "head_bytes": self.each,
        }  # fmt: skip
        if shared:
            at = base + (row.shape[1] - turned.shape[2]) * 4
            fields |= {"shared": at, "shared_stride": stride}
        if rotation is not None:
            angles = np.arange(LENGTH)[:, None] * rotation.frequencies
            table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * rotation.magnitude
            fields |= {
                "rope_dim": rotation.dim, "rope_offset": rotation.offset,
                "kind": rotation.kind.value, "table": put(device, table.astype(np.float32)),
            }  # fmt: skip
        factors = np.ones(LENGTH, np.float32)
        if temperature:
            factors += np.arange(LENGTH, dtype=np.float32) / 7
            fields["temperature"] = put(device, factors)
        if norm is not None:
            fields |= {
                "norm_kind": norm, "norm_step": key_dim * 4 if own_norms else 0,
                "q_norm": put(device, weights[0]), "k_norm": put(device, weights[1]),
            }  # fmt: skip
            if bias:
                fields |= {"q_bias": put(device, biases[0]), "k_bias": put(device, biases[1])}
        self.fields, self.q_at, self.stride = fields, base, stride
        at = np.array(POSITIONS)
        whole = np.concatenate([k, np.broadcast_to(turned, (*k.shape[:2], key_dim - plain))], 2)

        def turn(x: NDArray, which: int) -> NDArray[np.float64]:
            count = x.shape[1]
            b = biases[which, :count] if bias else None
            y = normed(x.astype(np.float64), norm, weights[which, :count], b)
            return y if rotation is None else rotate(y, rotation, at)

        self.q = turn(q, 0) * 0.25 * factors[at][:, None, None]
        self.k = turn(whole, 1)
        self.v = normed(v.astype(np.float64), NORM_RMS if v_norm else None, None, None)

    def run(self) -> None:
        """Run it, and compare q and all pages."""
        device, tokens = self.device, len(POSITIONS)
        tables = [put(device, np.array(pages, np.int32)) for pages in PAGES]
        step = StepAddresses(
            token_ids=0,
            positions=put(device, np.array(POSITIONS, np.int32)),
            ends=0,
            tables=put(device, np.array([tables[s] for s in SEQUENCES], np.int64)),
            out_rows=0,
            tiles=0,
        )
        work = rope_rows(Fields(self.fields), StepShape(tokens, Mode.INT8, tokens, 1, 0, step))
        device.load([launch.kernel for launch in work])
        device.run(work)
        rows = device.read(self.q_at, tokens * self.stride).view(np.float32).reshape(tokens, -1)
        found = rows[:, : self.q[0].size].reshape(self.q.shape)
        np.testing.assert_allclose(found, self.q, rtol=1e-5, atol=1e-5)
        pages = device.read(self.kv, self.pages.nbytes).reshape(self.pages.shape)
        written = np.zeros(pages.shape, bool)
        start = 0
        for x, dim in zip((self.k, self.v), self.dims, strict=True):
            room = -(-dim // 32) * 32
            for t, (position, sequence) in enumerate(zip(POSITIONS, SEQUENCES, strict=True)):
                page = PAGES[sequence][position // PAGE]
                places = self.places(start, position % PAGE, room)
                for place in places:
                    written[page, :, place] = True
                rows = [pages[page, : self.kv_heads, place] for place in places]
                meant = np.pad(x[t], [(0, 0), (0, room - dim)])
                self.compare(rows, meant, paired=start == 0)
            start += room * BYTES[self.kv_type]
        np.testing.assert_array_equal(pages[~written], 77)

    def places(self, start: int, slot: int, room: int) -> list[slice]:
        """Where a row lies in a head's page: its values, and their scales."""
        size = 1 if self.kv_type == "q8_0" else np.dtype(TYPES[self.kv_type]).itemsize
        found = [slice(start + slot * room * size, start + (slot + 1) * room * size)]
        if self.kv_type == "q8_0":
            start, each = start + PAGE * room, room // 32 * 2
            found.append(slice(start + slot * each, start + (slot + 1) * each))
        return found

    def compare(self, rows: list[NDArray], meant: NDArray, *, paired: bool) -> None:
        """A row of all heads: rounded to the nearest that its type has."""
        values = np.ascontiguousarray(rows[0])
        if self.kv_type != "q8_0":
            accuracy = 1e-3 if self.kv_type == "f16" else 1e-5
            found = values.view(TYPES[self.kv_type])
            np.testing.assert_allclose(found, meant, rtol=accuracy, atol=accuracy / 10)
            return
        columns = np.arange(meant.shape[1])
        groups = columns % (len(columns) // 2) // 16 if paired else columns // 32
        scales = np.ascontiguousarray(rows[1]).view(np.float16).astype(np.float64)[:, groups]
        for g in range(len(columns) // 32):
            mine = groups == g
            largest = np.abs(meant[:, mine]).max(1)
            np.testing.assert_allclose(scales[:, mine][:, 0], largest / 127, rtol=1e-3, atol=1e-7)
        error = np.abs(values.view(np.int8) * scales - meant)
        assert np.all(error <= scales * 0.5001 + np.abs(meant) * 1e-3)


def rotation(kind: Rope, dim: int, offset: int = 0) -> Rotation:
    """Some rotation."""
    frequencies = 1.0 / 50 ** (np.arange(dim // 2) / (dim // 2))
    return Rotation(kind=kind, frequencies=frequencies, offset=offset, magnitude=1.25)


@pytest.mark.parametrize("kv_type", list(TYPES))
@pytest.mark.parametrize("kind", [Rope.NORM, Rope.NEOX])
@pytest.mark.parametrize("dim, offset", [(64, 0), (20, 0), (32, 16), (32, 32)])
def test_rotation(device: Any, kind: Rope, dim: int, offset: int, kv_type: str) -> None:
    Case(device, rotation=rotation(kind, dim, offset), kv_type=kv_type).run()


@pytest.mark.parametrize("kv_type", list(TYPES))
@pytest.mark.parametrize("key_dim, value_dim", [(16, 16), (80, 80), (256, 192), (576, 512)])
@pytest.mark.parametrize("kind", [None, Rope.NORM, Rope.NEOX])
def test_dims(device: Any, kind: Rope | None, key_dim: int, value_dim: int, kv_type: str) -> None:
    turning = None if kind is None else rotation(kind, key_dim)
    Case(
        device, key_dim=key_dim, value_dim=value_dim, rotation=turning, kv_type=kv_type
    ).run()  # fmt: skip


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("norm", [NORM_RMS, NORM_LAYER])
def test_norms(device: Any, norm: int, bias: bool, own: bool) -> None:
    turning = rotation(Rope.NEOX, 48)
    Case(device, norm=norm, bias=bias, own_norms=own, rotation=turning, v_norm=bias).run()


@pytest.mark.parametrize("kind", [Rope.NORM, Rope.NEOX])
def test_shared_part(device: Any, kind: Rope) -> None:
    """Latent attention: what rotates of K is the same in all heads."""
    Case(device, key_dim=96, rotation=rotation(kind, 32, 64), shared=True, norm=NORM_RMS).run()


def test_temperature(device: Any) -> None:
    Case(device, temperature=True, rotation=rotation(Rope.NORM, 64), heads=5).run()


def test_values_are_keys(device: Any) -> None:
    Case(
        device, v_is_k=True, value_dim=64, norm=NORM_RMS, v_norm=True,
        rotation=rotation(Rope.NEOX, 64),
    ).run()  # fmt: skip


def test_queries_only(device: Any) -> None:
    """Layers that use another's keys and values."""
    Case(device, kv_heads=0, norm=NORM_RMS, rotation=rotation(Rope.NEOX, 64)).run()
