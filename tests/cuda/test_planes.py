"""Row planes: the bytes of a row in another order, and the kernel that puts them there."""

import numpy as np
import pytest
from random_rows import FORMAT_NAMES, random_rows

from llamba.quant.cuda.planes import FLOATS, PLANES, format_named, regroup, restore, row_bytes
from llamba.runtime.kernels.cuda.launches.regroup import regroup as regroup_launch


@pytest.mark.parametrize("name", PLANES)
def test_the_pieces_are_the_block(name: str) -> None:
    covered = sorted(k for at, size in PLANES[name] for k in range(at, at + size))
    assert covered == list(range(format_named(name).block.itemsize))


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_regrouped_rows_come_back(name: str) -> None:
    raw = random_rows(name, np.random.default_rng(1), 5, 768)
    planes = regroup(name, raw, 768)
    assert planes.shape == (5, row_bytes(name, 768)) and row_bytes(name, 768) % 16 == 0
    assert np.array_equal(np.sort(raw.sum(1)), np.sort(planes.sum(1)))
    assert np.array_equal(restore(name, planes, 768), raw)
    if name not in FLOATS:
        assert not np.array_equal(planes[:, : raw.shape[1]], raw)


@pytest.mark.parametrize("name", PLANES)
@pytest.mark.parametrize("rows, blocks", [(1, 1), (7, 3)])
def test_the_kernel_regroups(device, name: str, rows: int, blocks: int) -> None:
    columns = format_named(name).block_len * blocks
    raw = random_rows(name, np.random.default_rng(2), rows, columns)
    planes = regroup(name, raw, columns)
    at, to = device.allocate(raw.size), device.allocate(planes.size)
    device.write(at, raw)
    launch = regroup_launch(name, at, to, rows, columns)
    device.load([launch.kernel])
    device.run([launch])
    assert np.array_equal(device.read(to, planes.size).reshape(planes.shape), planes)
