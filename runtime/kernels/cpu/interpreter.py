"""The interpreter: every thread of the team walks the program, with a spin barrier between ops."""

from ....quant.cpu.simd import (
    atomic_add,
    atomic_load,
    atomic_store,
    call_address,
    inline,
    kernel,
    load_i64,
    pause,
    yield_core,
)
from ..records import OP, RECORD_BYTES, STEP

# A barrier takes about 75 ns when all are there. After this many pauses (about 25 ns each) somebody
# else must be running on a core that we wait for: give ours away between looks.
_SPINS = 4000


@inline
def _barrier(at, num_threads, generation):  # noqa: ANN001, ANN202
    """Sense barrier: arrivals at `at`, generation a cache line further."""
    if atomic_add(at, 1) == num_threads - 1:
        atomic_store(at, 0)
        atomic_store(at + 64, generation + 1)
    else:
        spins = 0
        while atomic_load(at + 64) == generation:
            pause()
            spins += 1
            if spins > _SPINS:
                yield_core()


@kernel
def run_program(program, num_ops, step, thread):  # noqa: ANN001, ANN201
    """Run `num_ops` records at `program` as thread number `thread`; all threads leave together."""
    num_threads = load_i64(step + STEP.num_threads)
    barrier = load_i64(step + STEP.barrier)
    generation = atomic_load(barrier + 64)
    for i in range(num_ops):
        op = program + i * RECORD_BYTES
        call_address(load_i64(op + OP.function), op, step, thread)
        if load_i64(op + OP.barrier) != 0:
            if num_threads > 1:
                _barrier(barrier, num_threads, generation)
                generation += 1
    return 0
