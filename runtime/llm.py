"""LLM: a loaded model, from its file to its end. The Python front door; the others use it too.

What it does with prompts is in generation.py, with texts to embed in embedding.py, with documents
to sort in reranking.py.
"""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from .adapter_set import AdapterInfo, Lora
from .embedding import Embeds
from .engine import Engine
from .generation import Generates
from .load import Progress, load
from .params import SamplingParams
from .request_builder import RequestBuilder
from .reranking import Reranks
from .stats import EngineStats

if TYPE_CHECKING:
    from ..models.chat import ChatTemplate
    from .prefix_file import Restored, Saved

_T = TypeVar("_T")


class LLM(Generates, Embeds, Reranks):
    """A model that answers, embeds texts, or sorts documents.

    Args:
        model: a path, a catalogue name ("smollm2") or "hf:owner/repo[:quant]".
        context_length: tokens of prompt and answer together. Default: the model's own, at most 8192
            (less, with a warning, if the KV cache would take more than half of the free memory).
        num_threads: default: physical cores that this process may use.
        activations: "int8" (fast) or "float32" (exact).
        chat_template: Jinja text, the name of a built-in template ("chatml") or a file's path,
            instead of the model's own.
        seed: makes the seeds that are drawn for requests without one repeatable.
        max_sequences: answers that are made at once; the others wait. Default: 16.
        kv_tokens: positions of the KV cache for all requests and cached prefixes together.
        cache_type: "f16", or "q8_0" for a KV cache of about half the size; "f32" rounds nothing.
        deterministic: the same tokens alone and beside others, bit for bit; slower.
        prefix_cache: find what prompts have in common with earlier ones instead of running it.
        memory_limit: bytes that it may take in all, weights, KV cache, activations and the program;
            what was not asked for shrinks to it.
        mmap: False reads the weights into memory of this process, instead of mapping the file.
        mlock: lock the weights in memory; where the system refuses, a warning says what it needs.
        nice: for the threads that run the model (Linux), 19 is the most polite; the caller's own
            keep their priority.
        background: for work that nobody waits for: half of the threads, the lowest priority.
        lora: files of LoRA adapters, or (file, scale); a request that doesn't say otherwise gets
            all of them with these scales (1.0). Their names are the files' without ".gguf".
        device: "cpu"; "cuda", or "cuda:1" for one of several GPUs; "auto" takes a GPU where there
            is one that holds at least half of the layers.
        gpu_layers: so many of the last layers run on the GPU, with the output, and the others on
            the CPU; "all". Default: as many as its memory holds.
        progress: called with (event, done, total) while something takes long: the events
            "wait", "download", "verify", "read" and "lock" count bytes, "compile" counts kernels.

    Raises:
        ModelError: no such model, not a sound file, or one that is not run.
        ResourceError: it does not fit into memory; the message says what to change.
        DeviceError: the GPU that was asked for isn't there, or can't be used.
        InvalidParameterError: an argument is out of its range.

    May be used by several threads and event loops at once: all requests run together. Example:

        params = SamplingParams(temperature=0.2, max_tokens=40)
        with LLM("smollm2") as llm:
            [answer] = llm.chat([{"role": "user", "content": "Why is the sky blue?"}], params)
            print(answer.outputs[0].text)
            for item in llm.submit("Once upon a time", params):
                print(item.delta, end="")
            cat, dog = llm.embed(["A cat sat down.", "A dog lay down."])
            print(cat.embedding @ dog.embedding)
    """

    def __init__(
        self,
        model: str | Path,
        *,
        context_length: int | None = None,
        num_threads: int | None = None,
        activations: str = "int8",
        chat_template: str | None = None,
        seed: int | None = None,
        max_sequences: int | None = None,
        kv_tokens: int | None = None,
        cache_type: str = "f16",
        deterministic: bool = False,
        prefix_cache: bool = True,
        memory_limit: int | None = None,
        mmap: bool = True,
        mlock: bool = False,
        nice: int | None = None,
        background: bool = False,
        lora: Lora | None = None,
        device: str = "auto",
        gpu_layers: int | str | None = None,
        progress: Progress | None = None,
    ) -> None:
        # Seeds are checked first: a model takes long to load for an error after it.
        base = SamplingParams(seed=seed).seed
        self._loaded = load(
            model,
            context_length=context_length,
            num_threads=num_threads,
            activations=activations,
            chat_template=chat_template,
            max_sequences=max_sequences,
            kv_tokens=kv_tokens,
            cache_type=cache_type,
            deterministic=deterministic,
            prefix_cache=prefix_cache,
            memory_limit=memory_limit,
            mmap=mmap,
            mlock=mlock,
            nice=nice,
            background=background,
            lora=lora,
            device=device,
            gpu_layers=gpu_layers,
            progress=progress,
        )
        self.model = str(model)
        self.path = self._loaded.path
        self.tokenizer = self._loaded.tokenizer
        self.weights = self._loaded.weights
        self.program = self._loaded.program
        self.config = self._loaded.config
        self.context_length = self.config.context_length
        self.default_params = self._loaded.default_params
        self.engine = Engine(
            self.program,
            self.tokenizer,
            max_sequences=self.config.max_sequences,
            prefix_cache=self.config.prefix_cache,
            whole_prompts=self.config.whole_prompts,
            nice=self.config.nice,
        )
        self._builder = RequestBuilder(self._loaded, base)
        self._process_id = os.getpid()
        self._closing = threading.Lock()
        self._closed = False

    @property
    def chat_template(self) -> "ChatTemplate | None":
        """The template that chat() uses; None if the model has none, or an invalid one."""
        return self._loaded.chat_template

    @property
    def stats(self) -> EngineStats:
        """The engine's figures right now."""
        return self.engine.stats

    @property
    def adapters(self) -> list[AdapterInfo]:
        """The LoRA adapters that the model was loaded with, and their default scales."""
        return self._loaded.adapters.infos

    def set_lora(self, lora: Mapping[str, float]) -> None:
        """Change the adapters' default scales, for requests from now on; what isn't named gets 0.

        InvalidParameterError: an unknown name, or a scale that is no number.
        """
        self._loaded.adapters.set_default(lora)

    def check_generates(self) -> None:
        """Raise UnsupportedTaskError if the model is an encoder, which can't generate text."""
        self._builder.check_answers()

    def save_prefix_cache(self, path: str | Path) -> "Saved":
        """Write the cached prefixes to a file; PrefixFileError if that can't be done.

        With adapters: those of requests that had the default scales.
        """
        from .prefix_file import save

        return self._between_steps(save, path)

    def load_prefix_cache(self, path: str | Path) -> "Restored":
        """Take up cached prefixes from a file; FileNotFoundError, PrefixFileError."""
        from .prefix_file import restore

        return self._between_steps(restore, path)

    def close(self) -> None:
        """Cancel what runs, stop the threads, unmap the file. May be repeated."""
        if os.getpid() != self._process_id:
            return  # fork copied neither the threads nor the right to their memory
        self.engine.close()
        with self._closing:
            if not self._closed:
                self._closed = True
                self._loaded.close()

    def __enter__(self) -> "LLM":
        """For `with LLM(...) as llm`."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Show the model and its sizes."""
        return (
            f"LLM({self.model!r}, context_length={self.context_length}, "
            f"num_threads={self.config.num_threads}, activations={self.config.activations!r})"
        )

    def _between_steps(self, function: Callable[..., _T], path: str | Path) -> _T:
        from .model_identity import identify

        def work() -> _T:  # reads the file, which close() unmaps when the engine's thread has ended
            identity = identify(self.weights, self.config, self._loaded.adapters)
            return function(path, self.engine.core.pool, self.program, identity)

        return self.engine.run_between_steps(work)
