"""Stand-ins for the engine's neighbours: a tokenizer of bytes, a program that only keeps books.

And processes of another target than this machine's.
"""

import importlib.util
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llamba.models.tokenizer.stream import StreamDecoder
from llamba.runtime.batch import PAGE_SIZE, Batch, Logits
from llamba.runtime.core import EngineCore
from llamba.runtime.engine import Engine
from llamba.runtime.outputs import RequestOutput
from llamba.runtime.params import SamplingParams
from llamba.runtime.request import Request

EOS, BOS, USER = 256, 257, 258
VOCAB = 260
DIM = 8


class FakeTokenizer:
    """Token ids 0..255 are bytes, the others control tokens."""

    vocab_size = VOCAB
    longest_token = 4
    bos_id, eos_id = BOS, EOS
    stop_ids = frozenset({EOS})
    suppress_ids: frozenset[int] = frozenset()

    @property
    def vocabulary(self) -> SimpleNamespace:
        """What looks for tags among the control tokens asks for."""
        return SimpleNamespace(texts=[self.token_text(i) for i in range(VOCAB)], controls=[EOS])

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        bos = [BOS] if add_special else []
        if parse_special and text.startswith("<bos>"):
            bos, text = [*bos, BOS], text.removeprefix("<bos>")
        return bos + list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def token_text(self, token_id: int) -> str:
        names = {EOS: "<eos>", BOS: "<bos>", USER: "<user>"}
        return names.get(token_id, chr(token_id) if token_id < 128 else f"<{token_id}>")

    def stream(self, *, skip_special: bool = True, show: object = ()) -> StreamDecoder:
        if skip_special:
            return StreamDecoder(self.token_bytes)
        return StreamDecoder(lambda i: self.token_bytes(i) or self.token_text(i).encode())


@dataclass
class FakeProgram:
    """Writes tokens into pages as a KV cache; logits depend on exactly what the pages hold.

    With a script, the token after n tokens of context is script[n] wherever that is set.
    """

    num_pages: int = 24
    max_tokens: int = 16
    max_logits: int = 16
    script: dict[int, int] = field(default_factory=dict)
    before: Callable[[Batch], None] | None = None  # called at the begin of a run
    chunks: list[tuple[int, int]] = field(default_factory=list)  # (start, num_tokens) of all runs
    closed: bool = False
    contexts: list[list[int]] = field(default_factory=list)  # of the last run's HIDDEN segments

    def __post_init__(self) -> None:
        self.kv = np.full((self.num_pages, PAGE_SIZE), -1, np.int64)

    def run(self, batch: Batch) -> np.ndarray:
        if self.before is not None:
            self.before(batch)
        assert 0 < batch.num_tokens <= self.max_tokens
        written: set[tuple[int, int]] = set()
        rows = []
        for s in batch.segments:
            assert s.num_tokens > 0 and s.token_ids.dtype == np.int32
            assert s.block_table.dtype == np.int32
            assert len(set(s.block_table.tolist())) == len(s.block_table)
            end = s.start + s.num_tokens
            assert len(s.block_table) * PAGE_SIZE >= end
            for position, token in zip(range(s.start, end), s.token_ids, strict=True):
                slot = int(s.block_table[position // PAGE_SIZE]), position % PAGE_SIZE
                assert slot not in written, "two segments write one slot"
                written.add(slot)
                self.kv[slot] = token
            self.chunks.append((s.start, s.num_tokens))
        self.contexts = []
        for s in batch.segments:
            end = s.start + s.num_tokens
            if s.logits is Logits.HIDDEN:
                self.contexts.append(self.kv[s.block_table].ravel()[:end].tolist())
                continue
            self.contexts.append([])
            context = self.kv[s.block_table].ravel()[:end].tolist()
            first = {Logits.NONE: end, Logits.LAST: end - 1, Logits.ALL: s.start}[s.logits]
            rows += [self.logits_of(context[: i + 1]) for i in range(first, end)]
        assert len(rows) <= self.max_logits
        return np.array(rows, np.float32).reshape(len(rows), VOCAB)

    def hidden_states(self, segment: int, tokens: slice = slice(None)) -> np.ndarray:
        context, num_tokens = self.contexts[segment], self.chunks[segment - len(self.contexts)][1]
        assert context, "the segment was not HIDDEN"
        ends = range(len(context) - num_tokens + 1, len(context) + 1)[tokens]
        states = [self.state_of(context[:end]) for end in ends]
        return np.array(states, np.float32).reshape(len(states), DIM)

    def state_of(self, context: list[int]) -> np.ndarray:
        """The last position's hidden state, float32 (DIM,)."""
        assert min(context) >= 0, "a position without KV was read"
        seed = zlib.crc32(np.array(context, np.int64).tobytes())
        return np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)

    def copy_page(self, source: int, target: int) -> None:
        self.kv[target] = self.kv[source]

    def logits_of(self, context: list[int]) -> np.ndarray:
        assert min(context) >= 0, "a position without KV was read"
        seed = zlib.crc32(np.array(context, np.int64).tobytes())
        logits = np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32) * 3
        logits[256:] = -20  # control tokens only where the script has them
        if len(context) in self.script:
            logits[self.script[len(context)]] = 50
        return logits

    def close(self) -> None:
        self.closed = True


def _sibling(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def slow() -> ModuleType:
    """The module slow_sampler.py: all samplers as plain loops."""
    return _sibling("slow_sampler")


@pytest.fixture(scope="session")
def device() -> ModuleType:
    """The module device_program.py: a program whose rows stay on a device."""
    return _sibling("device_program")


@pytest.fixture(scope="session")
def grammars() -> ModuleType:
    """The module grammar_rig.py: a tokenizer of bytes, and walks through grammars."""
    return _sibling("grammar_rig")


@pytest.fixture(scope="session")
def kv_pages() -> ModuleType:
    """The module kv_pages.py: a layer's pages, and attention over them."""
    return _sibling("kv_pages")


@pytest.fixture(scope="session")
def json_schemas() -> ModuleType:
    """The module json_schemas.py: schemas drawn by a seed."""
    return _sibling("json_schemas")


@pytest.fixture(scope="session")
def fakes() -> SimpleNamespace:
    """The classes and constants above, and what builds requests and engines of them."""

    def request(
        prompt: str,
        *,
        context: int = 250,
        priority: int = 0,
        timeout_s: float | None = None,
        **params: object,
    ) -> Request:
        """With temperature 0, if `params` don't say otherwise."""
        tokenizer = FakeTokenizer()
        sampling = SamplingParams(**{"temperature": 0, **params})  # type: ignore[arg-type]
        return of_ids(
            tokenizer.encode(prompt),
            sampling,
            prompt=prompt,
            context=context,
            priority=priority,
            timeout_s=timeout_s,
        )

    def of_ids(
        ids: list[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        context: int = 250,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Request:
        """A request of token ids."""
        room = context - len(ids)
        wanted = params.max_tokens
        return Request(
            prompt,
            ids,
            params,
            FakeTokenizer(),  # type: ignore[arg-type]
            seed=0,
            max_new_tokens=room if wanted is None else min(wanted, room),
            priority=priority,
            timeout_s=timeout_s,
        )

    def engine(program: FakeProgram, **options: Any) -> Engine:
        return Engine(program, FakeTokenizer(), **options)  # type: ignore[arg-type]

    def core(program: FakeProgram, **options: Any) -> EngineCore:
        """Its clock ticks when it is read, so that no step depends on how long others took."""
        ticks = count(1)
        options = {"clock": lambda: next(ticks) * 1e-3, **options}
        return EngineCore(program, FakeTokenizer(), **options)  # type: ignore[arg-type]

    def drive(core: EngineCore, *requests: Request) -> list[RequestOutput]:
        """Submit, step until nothing is left, and check the books after every step."""
        for each in requests:
            core.submit(each)
        while core.has_work:
            core.step()
            core.scheduler.check()
        return [each.output() for each in requests]

    def alone(prompt: str, **params: Any) -> RequestOutput:
        """The answer of a fresh engine, which is never short of anything."""
        return drive(core(FakeProgram()), request(prompt, **params))[0]

    return SimpleNamespace(
        Program=FakeProgram,
        Tokenizer=FakeTokenizer,
        request=request,
        of_ids=of_ids,
        engine=engine,
        core=core,
        drive=drive,
        alone=alone,
        EOS=EOS,
        BOS=BOS,
        USER=USER,
        VOCAB=VOCAB,
        DIM=DIM,
    )


@pytest.fixture(scope="session")
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """python(target, *arguments, cpu="") -> what Python did for a target ("": the one it finds).

    `cpu` is one that qemu emulates, else it is this machine's.
    """

    def run(wanted: str, *arguments: str, cpu: str = "") -> subprocess.CompletedProcess[str]:
        emulator = ["qemu-x86_64-static", "-cpu", cpu] if cpu else []
        return subprocess.run(
            [*emulator, sys.executable, *arguments],
            env=dict(os.environ, LLAMBA_TARGET=wanted),
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=900,
        )

    return run


@pytest.fixture
def ask(
    shared: Path, model_path: Path, python: Callable[..., subprocess.CompletedProcess[str]]
) -> Callable[..., list[tuple[int, float, float]]]:
    """ask(target, count, "int8" or "float32", cpu="") -> the greedy answer of a process."""
    golden = json.loads((shared / "open" / "variants_smollm2-135m.json").read_text())
    prompt = next(c["prompt_ids"] for c in golden["cases"] if c["name"] == "chat")

    def answer(
        wanted: str, count: int, activations: str, cpu: str = ""
    ) -> list[tuple[int, float, float]]:
        script = str(Path(__file__).with_name("greedy_answer.py"))
        arguments = [script, str(model_path), json.dumps(prompt), str(count), activations]
        done = python(wanted, *arguments, cpu=cpu)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return answer
