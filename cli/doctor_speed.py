"""What `llamba doctor` measures: memory bandwidth; a model's ceiling, and what limits it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import loading
from .progress import progress

if TYPE_CHECKING:
    from ..models.weights import Weights
    from ..runtime.gpus import Gpus

_RUN_S = 1.0
_NEAR = 0.7  # of the ceiling: nothing but memory limits it
_WAITING = 0.25  # share of the time: others are on the cores


def bandwidth(num_threads: int) -> dict[str, float]:
    """Bytes a second that one thread, and all, read."""
    from ..runtime.bandwidth import MemoryReader

    with progress("doctor") as update:
        reader = MemoryReader(update)
    one = reader.bytes_per_second(1)
    every = reader.bytes_per_second(num_threads) if num_threads > 1 else one
    return {"one_thread": one, "all_threads": max(one, every)}


def bytes_per_token(weights: "Weights") -> int:
    """What decoding reads of the weights: of experts only those that a token uses."""
    from ..runtime.footprint import streamed_bytes

    streamed, experts = streamed_bytes(weights), weights.hyperparameters.experts
    if experts is None:
        return streamed
    routed = sum(t.num_bytes for name, t in weights.gguf.tensors.items() if "_exps." in name)
    return streamed - routed + routed * experts.used // experts.count


def examine_model(name: str, num_threads: int, read: float | None, gpus: "Gpus") -> dict[str, Any]:
    """Where it would run, and a short run on the CPU beside what memory allows.

    read: bytes a second that all threads read; None: nothing is measured.
    """
    with loading.open_file(name) as gguf:
        from ..models.weights import Weights
        from ..runtime.request_builder import no_text
        from .doctor_gpu import runs_on
        from .doctor_machine import file_system

        weights = Weights.open(gguf)
        if not weights.architecture.causal:
            raise no_text(weights.architecture.name, weights.hyperparameters.num_labels)
        per_token = bytes_per_token(weights)
        found: dict[str, Any] = {
            "path": str(gguf.path),
            "runs_on": runs_on(weights, gpus),
            "file_system": file_system(Path(gguf.path)),
            "num_bytes": gguf.num_bytes,
            "bytes_per_token": per_token,
        }
        if read is None:
            return found
        run = _measure(weights, num_threads, str(gguf.path))
    ceiling = read / per_token
    found |= {"ceiling_ts": ceiling, **run, "of_ceiling": run["decode_ts"] / ceiling}
    return found | dict(zip(("limit", "because"), limits(found), strict=True))


def limits(found: dict[str, Any]) -> tuple[str, str]:
    """What limits a run, in a word and in a sentence.

    >>> run = {"of_ceiling": 0.9, "waiting": 0.0, "disk_reads_per_token": 0.0}
    >>> limits(run)[0], limits(run | {"of_ceiling": 0.4})[0]
    ('memory', 'arithmetic')
    """
    share = found["of_ceiling"]
    if found["disk_reads_per_token"] >= 1:
        return "disk", "weights are read from disk again and again: memory is short"
    if found["waiting"] > _WAITING:
        return "threads waiting", (
            f"threads waited for each other {found['waiting']:.0%} of the time: others are busy on "
            "the same cores, or there are more threads than cores"
        )
    if share >= _NEAR:
        return "memory", (
            f"it reaches {share:.0%} of what memory allows: a smaller quant, or faster memory, is "
            "what makes it faster"
        )
    return "arithmetic", (
        f"it reaches {share:.0%} of what memory allows: unpacking the weights takes longer than "
        "reading them; more cores, or a format that is simpler to unpack (Q4_0, Q8_0), may help"
    )


def _measure(weights: "Weights", num_threads: int, name: str) -> dict[str, float]:
    """Decode speed over about a second, what threads waited, and what came from the disk."""
    import time

    from ..runtime.forward import build_program
    from .measure import Bench, Case

    with progress(name) as update:
        program = build_program(
            weights,
            num_pages=4,
            num_threads=num_threads,
            max_sequences=1,
            progress=partial(update, "compile"),
        )
    try:
        bench = Bench(program, weights.hyperparameters.vocab_size)
        bench.measure(Case(0, 1), 1)
        [first] = bench.measure(Case(0, 2), 1, warmup=False).ns
        count = max(2, min(100, int(2 * _RUN_S * 1e9 / first)))
        faults, began = _disk_reads(), time.perf_counter()
        bench.measure(Case(0, count), 1, warmup=False)
        seconds = time.perf_counter() - began
        return {
            "decode_ts": count / seconds,
            "threads": num_threads,
            "waiting": program.waiting_share,
            "disk_reads_per_token": (_disk_reads() - faults) / count,
            **large_pieces(weights.gguf.paths),
        }
    finally:
        program.close()


def _disk_reads() -> int:
    try:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    except ImportError:
        return 0


def large_pieces(paths: Sequence[Path], smaps: Path = Path("/proc/self/smaps")) -> dict[str, float]:
    """The share of a mapped model that lies in memory in pieces of 2 MB; {}: not known."""
    try:
        lines = smaps.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    names = {str(path.resolve()) for path in paths}
    here, resident, large = False, 0, 0
    for line in lines:
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):  # the first line of a mapping, which ends with its file
            here = line.split(maxsplit=5)[-1] in names
        elif here and head in ("Rss:", "FilePmdMapped:"):
            kilobytes = int(rest.split()[0])
            resident += kilobytes if head == "Rss:" else 0
            large += kilobytes if head == "FilePmdMapped:" else 0
    return {"in_large_pieces": large / resident} if resident else {}
