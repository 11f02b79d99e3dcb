"""The store: names, near matches, the cache folder, the catalogue."""

from collections.abc import Callable
from pathlib import Path

import pytest

from llamba.errors import ModelError, ModelNotFoundError
from llamba.models import cache_folder, catalogue, store
from llamba.models.catalogue import CATALOGUE
from llamba.models.gguf import GGUFFile, shard_paths

Build = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of our own, and an empty one of the hub."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("LLAMBA_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    return folder


# ---------------------------------------------------------------- where


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert store.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("LLAMBA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.cache_dir() == tmp_path / "xdg" / "llamba"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert store.cache_dir() == tmp_path / "home" / ".cache" / "llamba"


def test_p71_no_home(monkeypatch: pytest.MonkeyPatch, tiny_gguf: Build) -> None:
    def none() -> Path:
        raise RuntimeError

    for variable in ("LLAMBA_CACHE", "XDG_CACHE_HOME", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", none)
    assert store.resolve(str(tiny_gguf())) == tiny_gguf()  # a path needs no cache
    with pytest.raises(ModelError, match="LLAMBA_CACHE"):
        store.resolve("smollm2")
    with pytest.raises(ModelNotFoundError, match="smollm2"):
        store.resolve("smolm2")


# ---------------------------------------------------------------- names


def test_resolve_paths(tiny_gguf: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf()
    assert store.resolve(path) == path
    assert store.resolve(str(path)) == path
    (tmp_path / "m.gguf").write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert store.resolve("m.gguf") == Path("m.gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.resolve("~/m.gguf") == tmp_path / "m.gguf"


def test_resolve_folder(tiny_gguf: Build, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    with pytest.raises(ModelNotFoundError, match="no .gguf file"):
        store.resolve(folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match="a model as it is on .*llamba convert .*OUT.gguf"):
        store.resolve(folder)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match="LoRA adapter .*llamba convert .*ADAPTER.gguf"):
        store.resolve(folder)
    (folder / "mmproj-a.gguf").write_bytes(b"")
    (folder / "a.gguf").write_bytes(b"")
    assert store.resolve(folder) == folder / "a.gguf"
    (folder / "b.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match="2 models .*a.gguf, b.gguf"):
        store.resolve(folder)


def test_p13_a_folder_of_shards_is_one_model(tiny_gguf: Build, cache: Path) -> None:
    first = tiny_gguf(split_max_tensors=5)
    folder = cache / "models"
    folder.mkdir(parents=True)
    for path in shard_paths(first):
        (folder / path.name).write_bytes(path.read_bytes())
    assert store.resolve(folder) == folder / first.name
    assert store.resolve(shard_paths(first)[1]) == shard_paths(first)[1]
    (model,) = store.list_models()
    assert model.path == folder / first.name
    assert model.num_bytes == sum(path.stat().st_size for path in shard_paths(first))
    assert store.resolve(model.name) == model.path
    assert store.remove(model.name) == model.num_bytes
    assert not list(folder.glob("*.gguf"))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smolm2", "did you mean smollm2"),
        ("SMOLLM2", "did you mean smollm2"),
        ("gemma", "gemma-3-270m"),
        ("owner/repo", "write hf:owner/repo"),
        ("", "name is empty"),
        ("zzz", "known names: smollm2"),
        ("./absent.gguf", "no such file"),
        ("x" * 5000, "known names"),
        ("a\0b", "known names"),
        ("hf:owner", "expected hf:owner/repo"),
        ("https://example.com/m.gguf", "only addresses of huggingface.co"),
    ],
)
def test_p18_unknown_names(name: str, hint: str) -> None:
    with pytest.raises(ModelNotFoundError, match=hint):
        store.resolve(name)
    with pytest.raises(ModelNotFoundError, match=hint):
        store.pull(name)


def test_p18_near_match_among_the_neighbours(tmp_path: Path) -> None:
    (tmp_path / "model-q4_k_m.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match="did you mean .*model-q4_k_m.gguf"):
        store.resolve(tmp_path / "model-q4_km.gguf")


def test_p71_dangling_link_says_where_it_pointed(tmp_path: Path) -> None:
    link = tmp_path / "m.gguf"
    link.symlink_to(tmp_path / "blobs" / "gone")
    with pytest.raises(ModelNotFoundError, match="a link to .*gone"):
        GGUFFile.open(store.resolve(link))


# ---------------------------------------------------------------- the catalogue


def test_catalogue_is_well_formed() -> None:
    assert catalogue.DEFAULT_MODEL in CATALOGUE
    for name, entry in CATALOGUE.items():
        assert entry.name == name and entry.file.endswith(".gguf")
        assert len(bytes.fromhex(entry.sha256)) == 32 and entry.num_bytes > 1 << 20
        assert all(package.count("==") == 1 for package in entry.packages)
        assert entry.licence and entry.description


@pytest.mark.model("smollm2")
def test_the_default_model_is_what_the_catalogue_says(model_path: Path) -> None:
    entry = CATALOGUE["smollm2"]
    assert model_path.stat().st_size == entry.num_bytes
    assert cache_folder.sha256_of(model_path) == entry.sha256
