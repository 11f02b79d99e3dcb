"""The run of `llamba imatrix`: a text through a model, chunk by chunk, saved as it goes."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InvalidParameterError
from . import loading
from .console import note
from .progress import progress
from .prompt import read_stdin

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..models.importance import Importance
    from ..models.tokenizer import Tokenizer
    from ..runtime.importance import Collector


class Target(Protocol):
    """Where results go."""

    path: Path

    def write(self, importance: "Importance", suffix: str = "") -> None:
        """Replace what was written before; suffix: of a copy's name."""
        ...


def collect(
    model: str,
    text: str,
    loaded: "list[Importance]",
    target: Target,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Collect, save, and report: the fields of --json."""
    from ..models.tokenizer import Tokenizer

    words = _read(text)
    with loading.open_file(model) as gguf:
        from ..models.output_targets import check_no_source

        check_no_source(target.path, [*gguf.paths, Path(text)])
        from ..models.weights import Weights
        from ..runtime.importance import Collector
        from ..runtime.threads import default_num_threads

        weights = Weights.open(gguf)
        tokenizer = Tokenizer.from_gguf(gguf)
        chunks = _chunks(tokenizer, words, options)
        with progress(model) as update:
            collector = Collector(
                weights,
                n_ctx=options["ctx_size"],
                num_threads=options["threads"] or default_num_threads(),
                bos_id=tokenizer.bos_id if tokenizer.add_bos else None,
                process_output=options["process_output"],
                with_losses=not options["no_ppl"],
                activations=options["activations"],
                progress=lambda done, total: update("compile", done, total),
            )
            name = "stdin" if text == "-" else text
            run = _Run(collector, chunks, loaded, name, target, options)
            try:
                run.all(update)
            except KeyboardInterrupt:
                run.tell_what_is_kept()
                raise
            finally:
                collector.close()
        return run.report()


def _read(text: str) -> str:
    """The text as it is, without the line end that closes it, as llama-imatrix takes it."""
    if text == "-":
        return read_stdin().removesuffix("\n")
    try:
        return Path(text).read_bytes().decode("utf-8", "replace").removesuffix("\n")
    except OSError as error:
        raise InvalidParameterError(
            f"{text}: {error.strerror}; TEXT is a file with text, or - for stdin"
        ) from None


def _chunks(tokenizer: "Tokenizer", text: str, options: dict[str, Any]) -> "NDArray[np.int32]":
    """(chunks, n_ctx): the whole ones of the text that are to be read."""
    import numpy as np

    n_ctx, first = options["ctx_size"], options["first"]
    if n_ctx < 1:
        raise InvalidParameterError(f"-c {n_ctx}: must be at least 1")
    ids = tokenizer.encode(text, parse_special=options["parse_special"])
    needed = (first + 1) * n_ctx
    if len(ids) < needed:
        after = f" after the {first} that are skipped" if first else ""
        raise InvalidParameterError(
            f"the text has {len(ids)} tokens, a chunk of {n_ctx}{after} needs {needed}: "
            "give a longer text or a smaller -c"
        )
    end = len(ids) // n_ctx
    if options["chunks"] >= 0:
        end = min(end, first + options["chunks"])
    if end == first:
        raise InvalidParameterError("--chunks 0: there is nothing to read")
    return np.array(ids[first * n_ctx : end * n_ctx], np.int32).reshape(-1, n_ctx)


class _Run:
    """Runs the chunks and saves."""

    def __init__(
        self,
        collector: "Collector",
        chunks: "NDArray[np.int32]",
        loaded: "list[Importance]",
        name: str,
        target: Target,
        options: dict[str, Any],
    ) -> None:
        from ..runtime.perplexity import Sums

        self._collector, self._chunks = collector, chunks
        self._loaded, self._name, self._target = loaded, name, target
        self._first, self._output_every = options["first"], options["output_every"]
        self._save_every = options["save_every"]
        self._sums = Sums()
        self._running: list[float] = []
        self._done = self._saved = 0
        self._seconds = 0.0
        self._last: Importance | None = None
        self._made()  # whether what was loaded is of this model is known before the first chunk

    def all(self, update: Any) -> None:
        """Every chunk."""
        total, started = len(self._chunks), time.monotonic()
        update("collect", 0, total)
        while self._done < total:
            # No more at once than up to where something is saved.
            stop = self._done + self._collector.chunks_at_once
            for every in (self._output_every, self._save_every):
                if every:
                    stop = min(stop, (self._done // every + 1) * every)
            stop = min(stop, total)
            losses = self._collector.run(self._chunks[self._done : stop])
            if losses is not None:
                self._score(losses)
            self._done = stop
            self._seconds = time.monotonic() - started
            more = f", perplexity {self._running[-1]:.4f}" if self._running else ""
            update("collect", self._done, total, more)
            if self._done % self._output_every == 0 or self._done == total:
                self._save()
            if self._save_every and self._done % self._save_every == 0:
                made = self._made()
                self._target.write(made, f".at_{made.chunk_count}")

    def _score(self, losses: "NDArray[np.float64]") -> None:
        for of_chunk in losses:
            self._sums.add(of_chunk)
            self._running.append(self._sums.exp_mean()[0])

    def _made(self) -> "Importance":
        from ..models.importance import Importance

        made = self._collector.importance((self._name,))
        return Importance.merged([*self._loaded, made]) if self._loaded else made

    def _save(self) -> None:
        self._last = self._made()
        self._target.write(self._last)
        self._saved = self._done

    def tell_what_is_kept(self) -> None:
        """After Ctrl-C."""
        if self._saved:
            note(
                f"stopped: {self._target.path} has the first {self._saved} chunks; go on with "
                f"--in-file {self._target.path} --from-chunk {self._first + self._saved}"
            )

    def report(self) -> dict[str, Any]:
        """The fields of --json."""
        from .imatrix import report_of

        assert self._last is not None
        found = report_of(self._last) | {
            "n_chunks": self._done,
            "num_tokens": int(self._chunks.size),
            "seconds": self._seconds,
            "ppl": None,
        }
        if self._running:
            value, error = self._sums.exp_mean()
            found |= {"ppl": value, "ppl_error": error}
            found["running_ppl"] = self._running
        return found
