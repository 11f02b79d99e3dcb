"""From a model's name to everything that runs it: file, tokenizer, template, sizes, program."""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ChatTemplateError, InvalidModelFileError, InvalidParameterError
from ..models.gguf import GGUFFile
from ..models.weights import Weights
from .adapter_set import AdapterSet, Lora, read_adapters
from .building import build
from .config import EngineConfig
from .footprint import memory_need
from .gpus import Gpus
from .memory import available_memory, describe
from .params import SamplingParams
from .sizing import configure

if TYPE_CHECKING:
    from ..models.chat import ChatTemplate
    from ..models.tokenizer import Tokenizer
    from .split import ModelProgram

logger = logging.getLogger(__name__)

# progress(event, done, total): the store's events, in bytes; "compile" and "compile_gpu", in
# kernels; "upload", in matrices.
Progress = Callable[[str, int, int], None]

_SAMPLING_PREFIX = "general.sampling."
_MAX_TEMPLATE = 1 << 22  # characters of a file
_NOT_RUN = ("sequence", "mirostat", "mirostat_tau", "mirostat_eta")


@dataclass
class Loaded:
    """A model that is ready to run, with what it was made from."""

    path: Path
    gguf: GGUFFile
    weights: Weights
    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate | None"
    chat_template_error: ChatTemplateError | None  # the file's own is invalid: chat is refused
    default_params: SamplingParams
    config: EngineConfig
    program: "ModelProgram"
    adapters: AdapterSet

    def close(self) -> None:
        """Stop the threads and unmap the file."""
        self.program.close()
        self.gguf.close()


def load(
    model: str | Path,
    *,
    context_length: int | None = None,
    num_threads: int | None = None,
    activations: str = "int8",
    chat_template: str | None = None,
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
) -> Loaded:
    """Load a model; `LLM` documents the arguments and the errors."""
    from ..models.store import resolve

    source = _template_source(chat_template)
    path = Path(resolve(model, progress=progress))
    gguf, gpus = GGUFFile.open(path), Gpus()
    try:
        weights = Weights.open(gguf)
        adapters, scales = read_adapters(lora or (), weights)
        config = configure(
            weights,
            context_length=context_length,
            num_threads=num_threads,
            activations=activations,
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
            device=device,
            gpu_layers=gpu_layers,
            gpus=gpus,
            adapter_bytes=sum(adapter.num_bytes for adapter in adapters),
        )
        _tell(path, weights, config)
        _keep(gguf, config, progress)
        with ThreadPoolExecutor(1) as pool:
            # The tokenizer is built (about 0.1 s for 150k tokens) while LLVM, which needs no
            # interpreter lock, links the kernels.
            text = pool.submit(_load_text, gguf, source)
            program = build(weights, config, gpus, adapters=adapters, progress=progress)
            try:
                tokenizer, template, template_error = text.result()
                _check_vocabulary(path, tokenizer.vocab_size, weights.hyperparameters.vocab_size)
            except BaseException:
                program.close()
                raise
        return Loaded(
            path=path,
            gguf=gguf,
            weights=weights,
            tokenizer=tokenizer,
            chat_template=template,
            chat_template_error=template_error,
            default_params=default_params(gguf.metadata),
            config=config,
            program=program,
            adapters=AdapterSet(adapters, scales),
        )
    except BaseException:
        gguf.close()
        raise
    finally:
        gpus.close()


def _tell(path: Path, weights: Weights, config: EngineConfig) -> None:
    """Log what it is about to take."""
    if not logger.isEnabledFor(logging.INFO):
        return
    num_layers = weights.hyperparameters.num_layers
    if config.gpu_layers:
        from .cuda.sizing import describe_gpu

        logger.info("%s: %s", path.name, describe_gpu(weights, config))
    if config.gpu_layers == num_layers:
        return
    need = memory_need(weights, config)
    sizes = describe(need, config.kv_tokens, config.cache_type, available_memory())
    logger.info("%s: %s", path.name, sizes)


def _keep(gguf: GGUFFile, config: EngineConfig, progress: Progress | None) -> None:
    """The weights into memory, if they are to stay there."""
    if not config.mmap:
        gguf.read(_event(progress, "read"))
    if config.mlock and (why := gguf.lock(_event(progress, "lock"))):
        logger.warning("mlock: the weights are not locked in memory: %s", why)


def _event(progress: Progress | None, event: str) -> Callable[[int, int], None]:
    return (lambda done, total: None) if progress is None else partial(progress, event)


def default_params(metadata: Mapping[str, Any]) -> SamplingParams:
    """llama.cpp's defaults, changed by what the file recommends (`general.sampling.*`)."""
    params: dict[str, Any] = {}
    for key in metadata:
        name = key.removeprefix(_SAMPLING_PREFIX)
        if name == key or name in _NOT_RUN:
            continue
        try:
            # With those before it: a file can give one setting under two names.
            SamplingParams.from_dict({**params, name: metadata[key]})
            params[name] = metadata[key]
        except InvalidParameterError as error:
            logger.warning("the file's %s is ignored: %s", key, error)
    return SamplingParams.from_dict(params)


def _load_text(
    gguf: GGUFFile, template_source: str | None
) -> "tuple[Tokenizer, ChatTemplate | None, ChatTemplateError | None]":
    from ..models.chat import ChatTemplate
    from ..models.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_gguf(gguf)
    tokenizer.encode("a", add_special=False)  # builds the encoder now, in this thread
    if template_source is not None:
        return tokenizer, ChatTemplate(template_source, tokenizer), None
    try:
        return tokenizer, ChatTemplate.from_gguf(gguf, tokenizer), None
    except ChatTemplateError as error:  # completions work without a template (PAINS P29)
        return tokenizer, None, error


def _check_vocabulary(path: Path, num_tokens: int, num_rows: int) -> None:
    """A token without a row would read beyond the tensor, a row without a token has no text."""
    if num_tokens != num_rows:
        raise InvalidModelFileError(
            f"{path}: tokenizer.ggml.tokens has {num_tokens} tokens, but token_embd.weight "
            f"{num_rows} rows: the file was put together wrongly; convert it anew"
        )


def _template_source(chat_template: str | None) -> str | None:
    """A Jinja template as text, by the name of a built-in one, or from a file."""
    if chat_template is None:
        return None
    from ..models.chat import BUILTIN_TEMPLATES

    if chat_template in BUILTIN_TEMPLATES:
        return BUILTIN_TEMPLATES[chat_template]
    if "{" in chat_template or "\n" in chat_template:
        return chat_template
    try:
        with Path(chat_template).open(encoding="utf-8") as file:
            text = file.read(_MAX_TEMPLATE + 1)  # a model's file, or /dev/zero, has no end
        if len(text) > _MAX_TEMPLATE:
            raise OSError(0, f"longer than {_MAX_TEMPLATE:,} characters")
        if "{{" not in text and "{%" not in text:  # it would drop what people say
            raise OSError(0, "a file without any {{ }} or {% %}")
        return text
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null byte in the name
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InvalidParameterError(
            f"chat_template={chat_template!r}: neither Jinja text, nor a readable file ({why}), "
            f"nor the name of a built-in template: {', '.join(BUILTIN_TEMPLATES)}"
        ) from error
