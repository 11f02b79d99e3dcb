"""The runtimes that are measured side by side, each behind the same five methods.

The peers are driven through their C API, as llama-bench and llama-batched-bench drive it: random
tokens, the logits of each sequence's last token only, no sampling. Nothing of llamba is imported at
the top, because the peers' environments do not have it.
"""

import importlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

NUM_BATCH = 2048  # n_batch of llama.cpp's tools; it cuts this into micro-batches of 512 itself


@dataclass(frozen=True)
class Run:
    """Consecutive tokens of one sequence."""

    sequence: int
    ids: Sequence[int]
    position: int = 0  # of the first of them: as many are cached
    logits: bool = True  # of the last of them


class Runtime(Protocol):
    """What the worker needs from a runtime."""

    vocab_size: int

    def info(self) -> dict[str, Any]:
        """Versions and what the build says of itself."""
        ...

    def clear(self) -> None:
        """Forget all sequences."""
        ...

    def keep(self, count: int) -> None:
        """Forget what sequence 0, the only one, has after its first `count` tokens."""
        ...

    def run(self, runs: Sequence[Run]) -> None:
        """Run them together; returns when the logits are there."""
        ...


def cut(runs: Sequence[Run], limit: int) -> Iterator[list[Run]]:
    """The same tokens in steps of at most `limit`; logits only where a run ends."""
    step, room = [], limit
    for run in runs:
        at = 0
        while at < len(run.ids):
            ids = run.ids[at : at + room]
            ends = at + len(ids) == len(run.ids)
            step.append(Run(run.sequence, ids, run.position + at, run.logits and ends))
            at, room = at + len(ids), room - len(ids)
            if not room:
                yield step
                step, room = [], limit
    if step:
        yield step


class LlamaCpp:
    """llama.cpp in the package llama-cpp-python."""

    def __init__(self, job: dict[str, Any]) -> None:
        """`repack`: weights copied into interleaved rows (its default); `flash_attn`: likewise."""
        self.api: Any = importlib.import_module("llama_cpp.llama_cpp")
        api = self.api
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        # llama-bench's and the server's --no-repack is this field.
        model_params.use_extra_bufts = job["repack"]
        model_params.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(os.fsencode(job["model"]), model_params)
        if not self.model:
            raise RuntimeError("llama.cpp cannot load the model")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = job["context"] * job["sequences"], job["sequences"]
        params.n_batch, params.n_ubatch = NUM_BATCH, 512
        params.kv_unified = job.get("unified", False)  # off: a cache for each sequence
        params.n_threads = params.n_threads_batch = job["threads"]
        params.flash_attn_type = int(job["flash_attn"])  # 0 off, 1 on; its auto is on for the CPU
        params.no_perf = True
        self.context = api.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.memory = api.llama_get_memory(self.context)
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.arrays = BatchArrays(job["sequences"])

    def info(self) -> dict[str, Any]:
        """Version of the package and the CPU features of the build."""
        return {
            "package": package_version("llama-cpp-python"),
            "system": self.api.llama_print_system_info().decode(),
        }

    def clear(self) -> None:
        """As llama-bench does: positions, not data."""
        self.api.llama_memory_clear(self.memory, False)

    def keep(self, count: int) -> None:
        """Cells of the other positions become free."""
        if not self.api.llama_memory_seq_rm(self.memory, 0, count, -1):
            raise RuntimeError("llama.cpp cannot forget a part of a sequence")

    def run(self, runs: Sequence[Run]) -> None:
        """Logical batches of n_batch tokens."""
        for step in cut(runs, NUM_BATCH):
            if self.api.llama_decode(self.context, self.arrays.fill(self.api.llama_batch(), step)):
                raise RuntimeError("llama_decode failed")
            self.api.llama_synchronize(self.context)


class IkLlamaCpp:
    """ik_llama.cpp in the package ik-llama-cpp-python (an older C API, so its own class)."""

    def __init__(self, job: dict[str, Any]) -> None:
        """`repack`: llama-bench's -rtr 1 (off by default); flash attention and fused ops are on."""
        ctypes: Any = importlib.import_module("ctypes")
        # Its libllama.so does not know that libggml.so lies beside it: load that one first.
        spec = importlib.util.find_spec("ik_llama_cpp")
        if spec is None or spec.origin is None:
            raise RuntimeError("the package ik-llama-cpp-python is not installed")
        ctypes.CDLL(os.path.join(os.path.dirname(spec.origin), "lib", "libggml.so"))
        self.api: Any = importlib.import_module("ik_llama_cpp._ctypes_api")
        api = self.api
        # The functions below are in the library but not in the binding.
        self.lib: Any = api._lib
        self.lib.llama_synchronize.argtypes = [ctypes.c_void_p]
        self.lib.llama_synchronize.restype = None
        self.lib.llama_print_system_info.restype = ctypes.c_char_p
        c_int = ctypes.c_int32
        self.lib.llama_kv_cache_seq_rm.argtypes = [ctypes.c_void_p, c_int, c_int, c_int]
        self.lib.llama_kv_cache_seq_rm.restype = ctypes.c_bool
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        model_params.repack_tensors = job["repack"]
        model_params.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(os.fsencode(job["model"]), model_params)
        if not self.model:
            raise RuntimeError("ik_llama.cpp cannot load the model")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = job["context"] * job["sequences"], job["sequences"]
        params.n_batch, params.n_ubatch = NUM_BATCH, 512
        params.n_threads = params.n_threads_batch = job["threads"]
        params.flash_attn = job["flash_attn"]
        self.context = api.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("ik_llama.cpp cannot make a context")
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.arrays = BatchArrays(job["sequences"])

    def info(self) -> dict[str, Any]:
        """Version of the package and the CPU features of the build."""
        return {
            "package": package_version("ik-llama-cpp-python"),
            "system": self.lib.llama_print_system_info().decode(),
        }

    def clear(self) -> None:
        """Forget all sequences."""
        self.api.llama_kv_cache_clear(self.context)

    def keep(self, count: int) -> None:
        """Cells of the other positions become free."""
        if not self.lib.llama_kv_cache_seq_rm(self.context, 0, count, -1):
            raise RuntimeError("ik_llama.cpp cannot forget a part of a sequence")

    def run(self, runs: Sequence[Run]) -> None:
        """Logical batches of n_batch tokens."""
        for step in cut(runs, NUM_BATCH):
            if self.api.llama_decode(self.context, self.arrays.fill(self.api.llama_batch(), step)):
                raise RuntimeError("llama_decode failed")
            self.lib.llama_synchronize(self.context)


class BatchArrays:
    """The arrays that a llama_batch points to, kept alive until the next one."""

    def __init__(self, num_sequences: int) -> None:
        self.ctypes: Any = importlib.import_module("ctypes")
        self.c_id = self.ctypes.c_int32
        self.sequences = [(self.c_id * 1)(i) for i in range(num_sequences)]
        self.kept: tuple[Any, ...] = ()

    def fill(self, batch: Any, step: Sequence[Run]) -> Any:
        """The runs as a llama_batch."""
        c, pointer = self.ctypes, self.ctypes.POINTER
        count = sum(len(run.ids) for run in step)
        ids = [token_id for run in step for token_id in run.ids]
        positions = [run.position + i for run in step for i in range(len(run.ids))]
        each = [pointer(self.c_id)(self.sequences[run.sequence]) for run in step]
        owners = [owner for owner, run in zip(each, step, strict=True) for _ in run.ids]
        wanted = [run.logits and i + 1 == len(run.ids) for run in step for i in range(len(run.ids))]
        self.kept = (
            (self.c_id * count)(*ids),
            (self.c_id * count)(*positions),
            (self.c_id * count)(*[1] * count),
            (pointer(self.c_id) * count)(*owners),
            (c.c_int8 * count)(*map(int, wanted)),
        )
        batch.n_tokens = count
        fields = ("token", "pos", "n_seq_id", "seq_id", "logits")
        kinds = dict(batch._fields_)
        for name, array in zip(fields, self.kept, strict=True):
            setattr(batch, name, c.cast(array, kinds[name]))
        return batch


class Llamba:
    """llamba's program without the engine above it: what llama-bench measures of llama.cpp."""

    def __init__(self, job: dict[str, Any]) -> None:
        """`activations`: "int8" (the default) or "float32", as in `LLM`."""
        np: Any = importlib.import_module("numpy")
        gguf: Any = importlib.import_module("llamba.models.gguf")
        weights: Any = importlib.import_module("llamba.models.weights")
        forward: Any = importlib.import_module("llamba.runtime.forward")
        self.np = np
        self.batch: Any = importlib.import_module("llamba.runtime.batch")
        self.file = gguf.GGUFFile.open(job["model"])
        self.weights = weights.Weights.open(self.file)
        each = -(-job["context"] // self.batch.PAGE_SIZE)
        self.program = forward.build_program(
            self.weights,
            num_pages=each * job["sequences"],
            num_threads=job["threads"],
            max_tokens=512,
            activations=job["activations"],
        )
        self.pages = np.arange(each * job["sequences"], dtype=np.int32).reshape(-1, each)
        self.vocab_size = self.weights.hyperparameters.vocab_size

    def info(self) -> dict[str, Any]:
        """Versions of llamba and of what compiled its kernels."""
        return {
            "package": package_version("llamba"),
            "numba": package_version("numba"),
            "llvmlite": package_version("llvmlite"),
            "numpy": package_version("numpy"),
        }

    def clear(self) -> None:
        """Nothing: a sequence that starts at position 0 reads nothing older."""

    def keep(self, count: int) -> None:
        """Nothing: what follows is overwritten."""

    def run(self, runs: Sequence[Run]) -> None:
        """Steps of at most the program's tokens."""
        for step in cut(runs, self.program.max_tokens):
            self.program.run(self.batch.Batch(tuple(map(self._segment, step))))

    def _segment(self, run: Run) -> Any:
        end = run.position + len(run.ids)
        kinds = self.batch.Logits
        return self.batch.Segment(
            token_ids=self.np.array(run.ids, dtype=self.np.int32),
            start=run.position,
            block_table=self.pages[run.sequence, : -(-end // self.batch.PAGE_SIZE)],
            logits=kinds.LAST if run.logits else kinds.NONE,
        )


RUNTIMES: dict[str, Any] = {"llama.cpp": LlamaCpp, "ik_llama.cpp": IkLlamaCpp, "llamba": Llamba}


def package_version(name: str) -> str:
    """An installed package's version, "?" when there is none."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "?"
