"""The interpreter: every thread of the team walks the program, with a spin barrier between ops.

Between steps the other threads stay in compiled code: they spin for a moment, then sleep on a
futex, so that a step needs neither Python nor its lock to start them.
"""

from ....quant.cpu.simd import (
    inline,
    kernel,
    load_i64,
    store_i64,
)
from ....quant.cpu.threads import (
    atomic_add,
    atomic_load,
    atomic_store,
    call_address,
    cycles,
    park,
    pause,
    wake,
    yield_core,
)
from ..records import JOB_STEP, OP, RECORD_BYTES, STEP

# A barrier takes about 75 ns when all are there. After _LONG pauses (about 25 ns each) somebody
# else must be running on a core that we wait for, perhaps ours. Who gives its core away then does
# not get it back before a time slice is over, and makes the others wait in turn: so it is given
# away only after _SPINS, between some more looks, then by sleeping. If threads often wait long,
# fewer take part (runtime/crowding.py).
_LONG, _SPINS, _YIELDS = 4000, 40000, 4
# How long an idle thread looks for the next step before it sleeps: about 50 us.
_IDLE_SPINS = 2000


@inline
def _barrier(at, num_threads, generation, waits):
    """Sense barrier: arrivals at `at`, the generation a cache line on, then how many sleep.

    Time after _LONG pauses is added at `waits`.
    """
    if atomic_add(at, 1) == num_threads - 1:
        atomic_store(at, 0)
        atomic_add(at + 64, 1)  # those who look later than we don't sleep: see threads.py
        if atomic_load(at + 128) > 0:
            wake(at + 64)
        return
    spins = 0
    since = 0
    while atomic_load(at + 64) == generation:
        pause()
        spins += 1
        if spins == _LONG:
            since = cycles()
        elif spins > _SPINS + _YIELDS:
            atomic_add(at + 128, 1)
            park(at + 64, generation)
            atomic_add(at + 128, -1)
        elif spins > _SPINS:
            yield_core()
    if spins >= _LONG:
        store_i64(waits, load_i64(waits) + cycles() - since)


@inline
def _walk(step, thread):
    """Take part in a job."""
    num_threads = load_i64(step + STEP.num_threads)
    barrier = load_i64(step + STEP.barrier)
    program = load_i64(step + STEP.program)
    waits = load_i64(step + STEP.waits) + 64 * thread
    generation = atomic_load(barrier + 64)
    for i in range(load_i64(step + STEP.num_ops)):
        op = program + i * RECORD_BYTES
        call_address(load_i64(op + OP.function), op, step, thread)
        if load_i64(op + OP.barrier) != 0:
            if num_threads > 1:
                _barrier(barrier, num_threads, generation, waits)
                generation += 1


@kernel
def run_program(program, num_ops, step):
    """Run `num_ops` records, the last with a barrier, as thread 0; no ops ends the others.

    Returns the cycles that it took.
    """
    started = cycles()
    num_threads = load_i64(step + STEP.num_threads)
    if num_threads > 1:
        job = load_i64(step + STEP.job)
        store_i64(step + STEP.program, program)
        store_i64(step + STEP.num_ops, num_ops)
        last = atomic_load(job)
        atomic_add(job, JOB_STEP - last % JOB_STEP + num_threads)
        if atomic_load(job + 64) > 0:
            wake(job)
    else:
        store_i64(step + STEP.program, program)
        store_i64(step + STEP.num_ops, num_ops)
    _walk(step, 0)
    return cycles() - started


@kernel
def work(step, thread):
    """The life of another thread: wait for the next job, take part in it; until one has no ops.

    At STEP.job lies the number of the job times JOB_STEP plus how many threads take part: one word,
    so that a thread that was late never takes one job's number for another's. A cache line further:
    how many threads sleep.
    """
    job = load_i64(step + STEP.job)
    last = 0
    while True:
        spins = 0
        while atomic_load(job) == last:
            pause()
            spins += 1
            if spins > _IDLE_SPINS:
                atomic_add(job + 64, 1)
                park(job, last)
                atomic_add(job + 64, -1)
        last = atomic_load(job)
        if thread >= last % JOB_STEP:
            continue
        if load_i64(step + STEP.num_ops) == 0:
            return 0
        _walk(step, thread)
