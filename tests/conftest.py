"""Fixtures for all tests: the goldens, the real models, tiny models built on the spot."""

import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent

# The marker's names -> the file in $LLAMBA_TEST_MODELS, and the name in llamba's catalogue.
REAL_MODELS = {
    "smollm2": ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2"),
    "gemma3": ("gemma-3-270m-q4_k_m.gguf", "gemma-3-270m"),
    "qwen-0.5b": ("qwen2.5-coder-0.5b.gguf", "qwen2.5-coder-0.5b"),
    "qwen-1.5b": ("qwen2.5-coder-1.5b.gguf", "qwen2.5-coder-1.5b"),
}


def _load(name: str) -> ModuleType:
    """A helper module beside this file; the tests' folder is no package and not on sys.path."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


# These two are imported by name in test modules; tiny, which needs gguf, only by its fixtures.
_load("gguf_bytes")
_load("hub_server")


@pytest.fixture(scope="session", autouse=True)
def forced_device() -> Iterator[str]:
    """What models run on in tests that don't say it (forced_device.py)."""
    with pytest.MonkeyPatch.context() as patch:
        yield _load("forced_device").install(patch)


@pytest.fixture(scope="session", autouse=True)
def fixed_seeds() -> Iterator[ModuleType]:
    """Requests without a seed draw the same tokens in every run (fixed_seeds.py)."""
    with pytest.MonkeyPatch.context() as patch:
        module = _load("fixed_seeds")
        module.install(patch)
        yield module


@pytest.fixture(autouse=True)
def drawn_seeds(
    request: pytest.FixtureRequest, fixed_seeds: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except in tests marked so."""
    wanted = request.node.get_closest_marker("drawn_seeds") is not None
    monkeypatch.setattr(fixed_seeds, "drawn", wanted)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many programs took the GPU that was asked for."""
    if os.environ.get("LLAMBA_TEST_DEVICE", "cpu") != "cpu":
        built = _load("forced_device").built
        terminalreporter.write_line(f"{len(built)} programs were built on a GPU")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden reference data, a sibling of the checkout; skips where it is absent."""
    folder = HERE.parent.parent / "shared" / "goldens"
    if not folder.is_dir():
        pytest.skip(f"no golden data: {folder} is absent")
    return folder


with contextlib.suppress(ImportError):  # it is of the extra `test`
    from hypothesis import HealthCheck, settings

    # The same examples in every run, on a slow machine too; --hypothesis-profile=default draws.
    settings.register_profile(
        "llamba",
        derandomize=True,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("llamba")


# A test may have another cache of its own when it asks for a real model.
_USERS_CACHE = {name: os.environ.get(name) for name in ("LLAMBA_CACHE", "XDG_CACHE_HOME", "HOME")}
_found: dict[str, Path | str] = {}


@pytest.fixture(scope="session")
def models() -> Callable[[str], Path]:
    """models("smollm2") -> the path of a real model; skips with the reason when it can't be had.

    $LLAMBA_TEST_MODELS is the folder that holds the files; without it they are pulled, once, into
    the user's cache.
    """

    def find(name: str) -> Path:
        if name not in _found:
            _found[name] = _find_model(name)
        found = _found[name]
        if isinstance(found, str):
            pytest.skip(found)
        return found

    return find


def _find_model(name: str) -> Path | str:
    file, catalogue_name = REAL_MODELS[name]
    if folder := os.environ.get("LLAMBA_TEST_MODELS"):
        path = Path(folder) / file
        return path if path.is_file() else f"LLAMBA_TEST_MODELS={folder} does not hold {file}"
    from llamba.errors import LlambaError
    from llamba.models import store

    try:
        with users_cache():
            return store.pull(catalogue_name)
    except (LlambaError, OSError) as error:
        return f"the model {name} can't be had: {error}"


@contextlib.contextmanager
def users_cache() -> Iterator[None]:
    """In here llamba uses the cache that it uses outside the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in _USERS_CACHE.items():
            if value is None:
                patch.delenv(variable, raising=False)
            else:
                patch.setenv(variable, value)
        yield


@pytest.fixture(scope="session")
def minilm_data(minilm: ModuleType) -> bytes:
    """The real encoder's weights and vocabulary; skips with the reason when they can't be had."""
    from llamba.errors import LlambaError

    try:
        with users_cache():
            return minilm.find()
    except (LlambaError, OSError) as error:
        pytest.skip(f"the model all-MiniLM-L6-v2 can't be had: {error}")


@pytest.fixture
def model_path(request: pytest.FixtureRequest, models: Callable[[str], Path]) -> Path:
    """The real model that the test's @pytest.mark.model("name") names."""
    marker = request.node.get_closest_marker("model")
    if marker is None or not marker.args:
        raise pytest.UsageError('model_path needs @pytest.mark.model("smollm2") or another name')
    return models(marker.args[0])


@pytest.fixture(scope="session")
def tiny() -> ModuleType:
    """The module tests/tiny.py: builders of tiny models, vocabularies and blocks."""
    return _load("tiny")


@pytest.fixture(scope="session")
def tiny_models() -> Iterator[ModuleType]:
    """The module tiny_models/tiny_catalogue.py, whose siblings import each other by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE / "tiny_models"))
        yield importlib.import_module("tiny_catalogue")


@pytest.fixture(scope="session")
def minilm() -> ModuleType:
    """The module tests/minilm.py: a real encoder, fetched and written as GGUF."""
    return _load("minilm")


@pytest.fixture(scope="session")
def adapter_file() -> ModuleType:
    """The module tests/adapter_file.py: writes LoRA adapters of tiny models."""
    return _load("adapter_file")


@pytest.fixture(scope="session")
def rig() -> ModuleType:
    """The module tests/rig.py: runs single compiled kernels. Compiles what the cache lacks."""
    return _load("rig")


@pytest.fixture(scope="session")
def tiny_gguf(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny_gguf(architecture="llama", weights="Q4_K", ...) -> the path of a tiny model.

    The options are those of tiny.write_tiny. Equal options give the same file: change a copy.
    """
    folder = tmp_path_factory.mktemp("tiny")
    built: dict[str, Path] = {}

    def build(**options: Any) -> Path:
        key = json.dumps(options, sort_keys=True, default=str)
        if key not in built:
            name = f"{options.get('architecture', 'llama')}-{len(built)}.gguf"
            built[key] = tiny.write_tiny(folder / name, **options)
        return built[key]

    return build


@pytest.fixture
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """In the place of the compiled kernels, gguf-py; what the quantizers are called with.

    A row of the list: (format, values, importance).
    """
    return _load("plain_kernels").install(monkeypatch)


@pytest.fixture(scope="session")
def tiny_f16(
    shared: Path, models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The F16 model that the goldens' quantize.json is about; it takes SmolLM2's tokenizer."""
    path = tmp_path_factory.mktemp("tiny-f16") / "tiny-f16.gguf"
    script = [str(shared / "make_tiny_f16.py"), str(models("smollm2")), str(path)]
    subprocess.run([sys.executable, *script], check=True)
    return path
