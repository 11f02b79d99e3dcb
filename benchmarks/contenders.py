"""One runtime at one setting in a process of its own: the worker side of compare.py.

    python contenders.py KIND '{"model": ..., "threads": ..., "context": ..., settings}'

KIND is `llama.cpp`, `ik_llama.cpp` or `llamba`. The worker loads the model, then answers one JSON
line on its standard output for each JSON line on its standard input:

    {"op": "measure", "prompt": 512, "gen": 128, "seed": 1}
        -> {"prompt_s": 1.2, "gen_s": 3.4, "cpu_s": 9.1}

The peers are driven through their C API, as llama-bench drives it: random tokens, the logits of
the last token only, no sampling. This file imports nothing of llamba at its top, because the
peers' environments do not have it.
"""

import importlib
import importlib.util
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol


class Contender(Protocol):
    """What the worker needs from a runtime."""

    vocab_size: int

    def info(self) -> dict[str, Any]:
        """Versions and what the build says of itself."""
        ...

    def clear(self) -> None:
        """Forget the sequence."""
        ...

    def prefill(self, ids: Sequence[int]) -> None:
        """Run a prompt from position 0; returns when the logits of its last token are there."""
        ...

    def decode(self, token_id: int, position: int) -> None:
        """Run one more token; returns when its logits are there."""
        ...


class LlamaCpp:
    """llama.cpp in the package llama-cpp-python."""

    def __init__(self, job: dict[str, Any]) -> None:
        """`repack`: weights copied into interleaved rows (its default); `flash_attn`: likewise."""
        self.api: Any = importlib.import_module("llama_cpp.llama_cpp")
        self.ctypes: Any = importlib.import_module("ctypes")
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
        params.n_ctx, params.n_batch, params.n_ubatch = job["context"], 2048, 512
        params.n_threads = params.n_threads_batch = job["threads"]
        params.flash_attn_type = int(job["flash_attn"])  # 0 off, 1 on; its auto is on for the CPU
        params.no_perf = True
        self.context = api.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.memory = api.llama_get_memory(self.context)
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))

    def info(self) -> dict[str, Any]:
        """Version of the package and the CPU features of the build."""
        return {
            "package": package_version("llama-cpp-python"),
            "system": self.api.llama_print_system_info().decode(),
        }

    def clear(self) -> None:
        """Forget the sequence, as llama-bench does: positions, not data."""
        self.api.llama_memory_clear(self.memory, False)

    def _run(self, ids: Sequence[int]) -> None:
        tokens = (self.ctypes.c_int32 * len(ids))(*ids)
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(tokens, len(ids))):
            raise RuntimeError("llama_decode failed")
        self.api.llama_synchronize(self.context)

    def prefill(self, ids: Sequence[int]) -> None:
        """One logical batch, which llama.cpp cuts into micro-batches of 512."""
        for start in range(0, len(ids), 2048):
            self._run(ids[start : start + 2048])

    def decode(self, token_id: int, position: int) -> None:
        """The position follows from the cache."""
        self._run((token_id,))


class IkLlamaCpp:
    """ik_llama.cpp in the package ik-llama-cpp-python (an older C API, so its own class)."""

    def __init__(self, job: dict[str, Any]) -> None:
        """`repack`: llama-bench's -rtr 1 (off by default); flash attention and fused ops are on."""
        self.ctypes: Any = importlib.import_module("ctypes")
        # Its libllama.so does not know that libggml.so lies beside it: load that one first.
        spec = importlib.util.find_spec("ik_llama_cpp")
        if spec is None or spec.origin is None:
            raise RuntimeError("the package ik-llama-cpp-python is not installed")
        self.ctypes.CDLL(os.path.join(os.path.dirname(spec.origin), "lib", "libggml.so"))
        self.api: Any = importlib.import_module("ik_llama_cpp._ctypes_api")
        api, c = self.api, self.ctypes
        # The functions below are in the library but not in the binding.
        self.lib: Any = api._lib
        self.lib.llama_batch_get_one.restype = api.llama_batch
        self.lib.llama_batch_get_one.argtypes = [c.POINTER(c.c_int32)] + [c.c_int32] * 3
        self.lib.llama_synchronize.argtypes = [c.c_void_p]
        self.lib.llama_synchronize.restype = None
        self.lib.llama_print_system_info.restype = c.c_char_p
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        model_params.repack_tensors = job["repack"]
        model_params.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(os.fsencode(job["model"]), model_params)
        if not self.model:
            raise RuntimeError("ik_llama.cpp cannot load the model")
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = job["context"], 2048, 512
        params.n_threads = params.n_threads_batch = job["threads"]
        params.flash_attn = job["flash_attn"]
        self.context = api.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("ik_llama.cpp cannot make a context")
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))

    def info(self) -> dict[str, Any]:
        """Version of the package and the CPU features of the build."""
        return {
            "package": package_version("ik-llama-cpp-python"),
            "system": self.lib.llama_print_system_info().decode(),
        }

    def clear(self) -> None:
        """Forget the sequence."""
        self.api.llama_kv_cache_clear(self.context)

    def _run(self, ids: Sequence[int], position: int) -> None:
        tokens = (self.ctypes.c_int32 * len(ids))(*ids)
        batch = self.lib.llama_batch_get_one(tokens, len(ids), position, 0)
        if self.api.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        self.lib.llama_synchronize(self.context)

    def prefill(self, ids: Sequence[int]) -> None:
        """One logical batch, which it cuts into micro-batches of 512."""
        for start in range(0, len(ids), 2048):
            self._run(ids[start : start + 2048], start)

    def decode(self, token_id: int, position: int) -> None:
        """One token at its position."""
        self._run((token_id,), position)


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
        num_pages = -(-job["context"] // self.batch.PAGE_SIZE)
        self.program = forward.build_program(
            self.weights,
            num_pages=num_pages,
            num_threads=job["threads"],
            max_tokens=512,
            activations=job["activations"],
        )
        self.pages = np.arange(num_pages, dtype=np.int32)
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

    def _run(self, ids: Sequence[int], start: int, logits: Any) -> None:
        end = start + len(ids)
        segment = self.batch.Segment(
            token_ids=self.np.array(ids, dtype=self.np.int32),
            start=start,
            block_table=self.pages[: -(-end // self.batch.PAGE_SIZE)],
            logits=logits,
        )
        self.program.run(self.batch.Batch((segment,)))

    def prefill(self, ids: Sequence[int]) -> None:
        """Chunks of at most the program's tokens a step; logits for the last token of all."""
        step = self.program.max_tokens
        kinds = self.batch.Logits
        for start in range(0, len(ids), step):
            last = start + step >= len(ids)
            self._run(ids[start : start + step], start, kinds.LAST if last else kinds.NONE)

    def decode(self, token_id: int, position: int) -> None:
        """One token at its position."""
        self._run((token_id,), position, self.batch.Logits.LAST)


KINDS: dict[str, Any] = {"llama.cpp": LlamaCpp, "ik_llama.cpp": IkLlamaCpp, "llamba": Llamba}


def package_version(name: str) -> str:
    """An installed package's version, "?" when there is none."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "?"


def measure(contender: Contender, command: dict[str, Any]) -> dict[str, float]:
    """Seconds for a prompt from an empty cache, then for decoding from an empty cache.

    Like llama-bench's pp and tg tests, each is preceded by a short run of its own kind, which
    wakes the threads and touches the memory but counts for nothing.
    """
    rng = random.Random(command["seed"])
    cpu = time.process_time()
    result = {"prompt_s": 0.0, "gen_s": 0.0}
    if command["prompt"]:
        ids = [rng.randrange(contender.vocab_size) for _ in range(command["prompt"])]
        contender.clear()
        contender.prefill(ids[: command["warmup"]])
        contender.clear()
        begin = time.perf_counter()
        contender.prefill(ids)
        result["prompt_s"] = time.perf_counter() - begin
    if command["gen"]:
        ids = [rng.randrange(contender.vocab_size) for _ in range(command["gen"])]
        contender.clear()
        contender.decode(ids[0], 0)
        contender.clear()
        begin = time.perf_counter()
        for position, token_id in enumerate(ids):
            contender.decode(token_id, position)
        result["gen_s"] = time.perf_counter() - begin
    result["cpu_s"] = time.process_time() - cpu
    return result


def main() -> None:
    """Load, say so, then obey one line at a time until the input ends."""
    kind, job = sys.argv[1], json.loads(sys.argv[2])
    # The runtimes print to standard output as they like: keep it for the answers alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    begin = time.perf_counter()
    contender: Contender = KINDS[kind](job)
    ready = {"load_s": time.perf_counter() - begin, "pid": os.getpid(), **contender.info()}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(contender, json.loads(line))), file=answers, flush=True)
    answers.flush()
    os._exit(0)  # the peers' destructors are not worth waiting for


if __name__ == "__main__":
    main()
