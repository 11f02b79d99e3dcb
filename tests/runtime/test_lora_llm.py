"""Adapters of an LLM: chosen by request, never mixed up in pages, named and checked."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from llamba import LLM, SamplingParams
from llamba.errors import InvalidParameterError, PrefixFileError, UnsupportedModelError
from llamba.runtime.adapter_set import AdapterSet

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = "hello world and the other hello world and the world " * 3
CHOICES: list[dict[str, float] | None] = [None, {}, {"two": 1.0}, {"one": 0.5, "two": 0.5}]


class Files:
    """A tiny model and two adapters of it."""

    def __init__(self, model: Path, adapter_file: ModuleType, folder: Path) -> None:
        self.model, targets = model, adapter_file.matrices(model)
        self.one, self.two = (
            adapter_file.write_adapter(
                folder / f"{name}.gguf",
                adapter_file.random_pairs(model, targets, rank=4, seed=seed),
            )
            for name, seed in (("one", 1), ("two", 2))
        )

    def llm(self, *lora: Any, **options: Any) -> LLM:
        given = {"num_threads": 2, "kv_tokens": 1024, "deterministic": True, **options}
        return LLM(self.model, lora=lora, **given)


@pytest.fixture(scope="module")
def files(
    tiny_gguf: Callable[..., Path],
    adapter_file: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
) -> Files:
    return Files(tiny_gguf(), adapter_file, tmp_path_factory.mktemp("lora-llm"))


@pytest.fixture(scope="module")
def llm(files: Files) -> Iterator[LLM]:
    with files.llm(files.one, (files.two, 0.0)) as model:
        yield model


def ids(outputs: Any) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.kernels
def test_requests_choose_and_never_find_pages_of_other_choices(llm: LLM, files: Files) -> None:
    """One after the other with a prefix cache, all at once, and in models of their own."""
    assert [(a.name, a.path, a.scale) for a in llm.adapters] == [
        ("one", files.one, 1.0),
        ("two", files.two, 0.0),
    ]
    answers = []
    for lora in CHOICES:
        [first] = llm.generate([PROMPT], GREEDY, lora=lora)
        [again] = llm.generate([PROMPT], GREEDY, lora=lora)
        assert first.metrics.cached_tokens == 0
        assert again.metrics.cached_tokens > 32
        assert ids([first]) == ids([again])
        answers += ids([first])
    streams = [llm.submit(PROMPT, GREEDY, lora=lora) for lora in CHOICES]
    assert [ids([stream.result()])[0] for stream in streams] == answers
    assert len({tuple(answer) for answer in answers}) == len(CHOICES)
    with files.llm() as alone:
        assert ids(alone.generate([PROMPT], GREEDY)) == [answers[1]]
    with files.llm(files.two) as other:
        assert ids(other.generate([PROMPT], GREEDY)) == [answers[2]]
    assert ids([llm.generate([PROMPT], GREEDY, lora={"one": 1})[0]]) == [answers[0]]  # the default


@pytest.mark.kernels
def test_chats_and_embeddings_choose_as_well(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answers = [ids(llm.chat(messages, GREEDY, lora=lora))[0] for lora in CHOICES]
    assert len({tuple(answer) for answer in answers}) > 1
    assert ids([llm.submit_chat(messages, GREEDY, lora=CHOICES[2]).result()]) == [answers[2]]
    found = [llm.embed("hello world", lora=lora)[0].embedding for lora in CHOICES]
    vectors = [vector for vector in found if vector is not None]
    assert len(vectors) == len(CHOICES)
    assert max(float(vectors[0] @ vector) for vector in vectors[1:]) < 0.999


@pytest.mark.kernels
def test_rerankers_choose_as_well(
    tiny_models: ModuleType, adapter_file: ModuleType, tmp_path: Path
) -> None:
    model = tiny_models.write(tmp_path, "qwen3-rank", "F32")
    pairs = adapter_file.random_pairs(model, adapter_file.matrices(model), rank=4)
    path = adapter_file.write_adapter(tmp_path / "one.gguf", pairs, architecture="qwen3")
    with LLM(model, lora=path, num_threads=1, activations="float32") as llm:
        scores = [llm.rerank("1", ["2"], lora=lora)[0].score for lora in (None, {"one": 1}, {})]
        assert scores[0] == scores[1] != scores[2]
        with pytest.raises(InvalidParameterError, match="no adapter 'two'"):
            llm.rerank("1", ["2"], lora={"two": 1})


@pytest.mark.kernels
def test_default_scales_change(files: Files) -> None:
    with files.llm((files.one, 0.5), files.two) as llm:
        before = ids(llm.generate([PROMPT], GREEDY))
        assert before == ids(llm.generate([PROMPT], GREEDY, lora={"one": 0.5, "two": 1}))
        llm.set_lora({"two": 1})
        assert [a.scale for a in llm.adapters] == [0.0, 1.0]
        after = ids(llm.generate([PROMPT], GREEDY))
        assert after == ids(llm.generate([PROMPT], GREEDY, lora={"two": 1})) != before
        with pytest.raises(InvalidParameterError, match="no adapter 'three'"):
            llm.set_lora({"three": 1})
        assert [a.scale for a in llm.adapters] == [0.0, 1.0]


@pytest.mark.kernels
def test_saved_prefixes_belong_to_the_default_choice(files: Files, tmp_path: Path) -> None:
    saved = tmp_path / "prefixes.kv"
    with files.llm(files.one, (files.two, 0)) as llm:
        [answer] = ids(llm.generate([PROMPT], GREEDY))
        llm.generate([PROMPT + "more"], GREEDY, lora={})  # not among those that are saved
        pages = llm.save_prefix_cache(saved).num_pages
    with files.llm(files.one) as llm:  # an adapter with scale 0 makes no difference
        assert llm.load_prefix_cache(saved).num_pages == pages
        [output] = llm.generate([PROMPT], GREEDY)
        assert output.metrics.cached_tokens > 32
        assert ids([output]) == [answer]
        assert llm.generate([PROMPT], GREEDY, lora={})[0].metrics.cached_tokens == 0
    for lora in ((), (files.two,), ((files.one, 0.5),)):
        with files.llm(*lora) as llm, pytest.raises(PrefixFileError, match="adapters one:1, not"):
            llm.load_prefix_cache(saved)


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("lora", "words"),
    [
        ({"three": 1.0}, "no adapter 'three': there are one, two"),
        ({"one": "much"}, "the scale of 'one' is much"),
        ({"one": float("nan")}, "the scale of 'one' is nan"),
        ({"one": 10**400}, "the scale of 'one' is 1000"),
        ({"one": True}, "the scale of 'one' is True"),
        ([("one", 1.0)], "must be a mapping"),
    ],
)
def test_wrong_choices_are_refused(llm: LLM, lora: Any, words: str) -> None:
    for ask in (llm.generate, llm.submit, llm.embed):
        with pytest.raises(InvalidParameterError, match=words):
            ask("hello", lora=lora)


def test_wrong_adapters_are_refused(files: Files, tmp_path: Path) -> None:
    """Before anything is compiled."""
    (tmp_path / "one.gguf").write_bytes(files.one.read_bytes())
    for lora, words in (
        ((files.one, tmp_path / "one.gguf"), "the same name 'one'"),
        (((files.one, "x"),), "the scale of 'one' is x"),
        ((7,), "must be the path of an adapter file"),
    ):
        with pytest.raises(InvalidParameterError, match=words):
            files.llm(*lora)
    with pytest.raises(UnsupportedModelError, match="not an adapter"):
        files.llm(files.model)


def test_a_model_without_adapters_has_none_to_choose() -> None:
    none = AdapterSet()
    assert none.choose(None) == none.choose({}) == ()
    with pytest.raises(InvalidParameterError, match="the model has none"):
        none.choose({"one": 1.0})


def test_namespaces() -> None:
    """0 of the model alone; each choice another one, never one that a request has for itself."""
    adapters: Any = [SimpleNamespace(name=n, path=Path(n), digest=n.encode()) for n in "ab"]
    chosen = AdapterSet(adapters, [1.0, 0.0])
    choices = [chosen.choose(lora) for lora in (None, {"b": 1}, {"a": 0.5}, {"a": 0.5, "b": 1})]
    namespaces = [chosen.namespace(choice) for choice in choices]
    assert chosen.namespace(chosen.choose({})) == chosen.namespace(chosen.choose({"a": 0})) == 0
    assert len(set(namespaces)) == 4
    assert max(namespaces) < 0
    assert chosen.namespace(chosen.choose({"a": 1})) == namespaces[0]
