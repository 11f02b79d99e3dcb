"""Models of the hub, against a server of our own on this machine (HF_ENDPOINT)."""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from hub_server import COMMIT, Handler, Hub

from llamba.errors import DownloadError, ModelError, ModelNotFoundError
from llamba.models import hub, hub_cache, store, transfer
from llamba.models.gguf import GGUFFile
from llamba.models.hub_names import Reference

pytest.importorskip("huggingface_hub", reason="needs the extra `hub`")

Build = Callable[..., Path]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """An empty hub, an empty cache, no token."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = http.server_port
    state = Hub(endpoint=f"http://127.0.0.1:{port}", storage=f"http://localhost:{port}")
    http.RequestHandlerClass = type("Bound", (Handler,), {"hub": state})
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", state.endpoint)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("LLAMBA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(transfer, "_PAUSE_SECONDS", 0.01)
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def raw(tiny_gguf: Build) -> bytes:
    return tiny_gguf(weights="Q8_0").read_bytes()


@pytest.fixture
def repo(server: Hub, raw: bytes) -> Hub:
    """Two quantizations, a vision tower, a text."""
    server.files = {
        "model-Q4_K_M.gguf": raw,
        "model-Q8_0.gguf": raw + b"8",
        "mmproj-model-f16.gguf": raw + b"m",
        "README.md": b"text",
    }
    return server


def no_partial_files(folder: Path) -> bool:
    return not [path for path in folder.rglob("*") if ".incomplete" in path.name]


# ---------------------------------------------------------------- pulling


def test_pull_lays_the_file_into_the_shared_cache(repo: Hub, raw: bytes, tmp_path: Path) -> None:
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    events: list[tuple[str, int, int]] = []
    path = store.pull("hf:owner/repo", lambda *event: events.append(event))
    assert path == tmp_path / "hf/models--owner--repo/snapshots" / COMMIT / "model-Q4_K_M.gguf"
    assert path.is_symlink() and path.read_bytes() == raw
    GGUFFile.open(path).close()
    assert events[-1] == ("download", len(raw), len(raw))
    found = try_to_load_from_cache("owner/repo", "model-Q4_K_M.gguf", cache_dir=tmp_path / "hf")
    assert found == str(path)
    (cached,) = scan_cache_dir(tmp_path / "hf").repos
    assert cached.repo_id == "owner/repo" and cached.size_on_disk == len(raw)
    assert {name for revision in cached.revisions for name in revision.refs} == {"main"}
    assert not scan_cache_dir(tmp_path / "hf").warnings
    assert no_partial_files(tmp_path)


def test_what_is_cached_needs_no_network(repo: Hub, raw: bytes) -> None:
    path = store.resolve("hf:owner/repo")
    repo.log.clear()
    assert store.resolve("hf:owner/repo") == path
    assert store.resolve("hf:owner/repo:q4_k_m") == path
    assert store.resolve("https://huggingface.co/owner/repo/blob/main/model-Q4_K_M.gguf") == path
    assert not repo.log
    store.pull("hf:owner/repo")
    assert not repo.bodies()  # asked for what is new, fetched nothing


def test_a_plain_name_keeps_its_meaning(repo: Hub) -> None:
    store.pull("hf:owner/repo:Q8_0")
    assert store.resolve("hf:owner/repo").name == "model-Q4_K_M.gguf"
    del repo.files["model-Q4_K_M.gguf"]
    repo.log.clear()
    assert store.resolve("hf:owner/repo").name == "model-Q4_K_M.gguf"
    assert not repo.log


def test_a_new_commit_shares_the_blob(repo: Hub, raw: bytes) -> None:
    first = store.pull("hf:owner/repo")
    repo.commit = "c" * 40
    repo.log.clear()
    second = store.pull("hf:owner/repo")
    assert second != first and second.resolve() == first.resolve() and not repo.bodies()
    assert store.remove("hf:owner/repo") == len(raw)
    assert not first.is_symlink() and not second.is_symlink()


def test_p14_all_shards(server: Hub, tiny_gguf: Build, tmp_path: Path) -> None:
    first = tiny_gguf(split_max_tensors=9)
    for path in sorted(first.parent.glob(first.name.replace("00001-of", "*-of"))):
        server.files[f"Q8_0/{path.name}"] = path.read_bytes()
    assert len(server.files) > 1
    with GGUFFile.open(store.pull("hf:owner/repo:Q8_0")) as file:
        assert file.num_bytes == sum(map(len, server.files.values()))
    (model,) = store.list_models()
    assert model.num_bytes == file.num_bytes and model.source == "hf"
    assert store.remove(model.name) == file.num_bytes


def test_s6_a_break_at_60_percent_is_resumed(repo: Hub, raw: bytes) -> None:
    cut = len(raw) * 6 // 10
    repo.drops = [cut]
    path = store.pull("hf:owner/repo")
    assert path.read_bytes() == raw
    assert [wanted for _, wanted in repo.bodies()] == ["", f"bytes={cut}-"]


def test_s6_a_pull_that_gave_up_is_resumed_by_the_next(
    repo: Hub, raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_ATTEMPTS", 1)
    cut = len(raw) * 6 // 10
    repo.drops = [cut]
    with pytest.raises(DownloadError, match=f"{cut:,} of {len(raw):,} bytes are kept"):
        store.pull("hf:owner/repo")
    assert not store.list_models()
    assert store.pull("hf:owner/repo").read_bytes() == raw
    assert repo.bodies()[-1][1] == f"bytes={cut}-"


def test_s6_server_without_ranges(repo: Hub, raw: bytes) -> None:
    repo.ranges, repo.drops = False, [len(raw) // 2]
    assert store.pull("hf:owner/repo").read_bytes() == raw


def test_s6_validator_changed_between_attempts(
    repo: Hub, raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_ATTEMPTS", 1)
    repo.served, repo.drops = bytes(len(raw)), [len(raw) // 2]
    with pytest.raises(DownloadError):
        store.pull("hf:owner/repo")
    repo.served, repo.etag = None, '"another"'
    assert store.pull("hf:owner/repo").read_bytes() == raw


@pytest.mark.parametrize("fault", ["other bytes", "longer"])
def test_s6_wrong_content_is_not_kept(repo: Hub, raw: bytes, tmp_path: Path, fault: str) -> None:
    repo.served = bytes(len(raw)) if fault == "other bytes" else raw + b"more"
    with pytest.raises(DownloadError, match="wrong content.*nothing was kept, pull it again"):
        store.pull("hf:owner/repo")
    assert no_partial_files(tmp_path) and not store.list_models()
    repo.served = None
    assert store.pull("hf:owner/repo").read_bytes() == raw


def test_s6_empty_body(repo: Hub, tmp_path: Path) -> None:
    repo.served = b""
    with pytest.raises(DownloadError, match="0 of .* bytes"):
        store.pull("hf:owner/repo")
    assert not store.list_models()


def test_s6_disk_full(repo: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(DownloadError, match="are free.*HF_HOME"):
        store.pull("hf:owner/repo")
    assert not repo.bodies()


def test_storage_on_the_hubs_own_host(repo: Hub, raw: bytes) -> None:
    """A mirror that redirects within itself: huggingface_hub then reports the storage's ETag."""
    repo.storage = repo.endpoint
    assert store.pull("hf:owner/repo").read_bytes() == raw
    repo.served = bytes(len(raw))
    with pytest.raises(DownloadError, match="wrong content"):
        store.pull("hf:owner/repo:Q8_0")


def test_s6_server_errors_are_retried(repo: Hub, raw: bytes) -> None:
    repo.statuses = [503, 429]
    assert store.pull("hf:owner/repo").read_bytes() == raw
    repo.statuses = [403]
    with pytest.raises(DownloadError, match="answered 403"):
        store.pull("hf:owner/repo:Q8_0")


def test_two_pulls_at_once_fetch_once(repo: Hub, raw: bytes) -> None:
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(store.pull("hf:owner/repo"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 3 and len(set(paths)) == 1 and paths[0].read_bytes() == raw
    assert len(repo.bodies()) == 1


# ---------------------------------------------------------------- refusals


def one_line(error: pytest.ExceptionInfo[BaseException]) -> bool:
    return "\n" not in str(error.value) and len(str(error.value)) < 400


def test_no_such_repository(repo: Hub) -> None:
    with pytest.raises(ModelNotFoundError, match="no such repository.*HF_TOKEN") as caught:
        store.resolve("hf:nobody/nothing")
    assert one_line(caught)


def test_no_such_quantization_or_file(repo: Hub) -> None:
    with pytest.raises(ModelNotFoundError, match="choose one of: Q4_K_M, Q8_0"):
        store.resolve("hf:owner/repo:Q2_K")
    with pytest.raises(ModelNotFoundError, match="choose one of"):
        store.resolve("hf:owner/repo/absent.gguf")
    with pytest.raises(ModelNotFoundError, match="no such revision"):
        store.resolve("https://huggingface.co/owner/repo/resolve/v9/model-Q8_0.gguf")


def test_private_repository_and_its_token(
    repo: Hub, raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.token = "secret"
    with pytest.raises(ModelNotFoundError, match="private, set HF_TOKEN") as caught:
        store.resolve("hf:owner/repo")
    assert one_line(caught)
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert store.resolve("hf:owner/repo").read_bytes() == raw


def test_the_token_stays_at_the_hub(repo: Hub, raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert store.pull("hf:owner/repo").read_bytes() == raw
    assert ("/api/models/owner/repo/revision/main", "Bearer secret") in repo.authorized
    seen = [token for path, token in repo.authorized if path.startswith("/storage/")]
    assert seen and not any(seen)


def test_gated_repository(repo: Hub) -> None:
    repo.gated = True
    with pytest.raises(DownloadError, match="accept the terms") as caught:
        store.resolve("hf:owner/repo")
    assert one_line(caught)


def test_names_that_lead_out_of_the_cache(server: Hub, raw: bytes, tmp_path: Path) -> None:
    server.files = {"../../../../evil-Q4_K_M.gguf": raw, "/tmp/evil-Q8_0.gguf": raw}
    with pytest.raises(ModelNotFoundError, match="no .gguf file"):
        store.resolve("hf:owner/repo")
    assert not list(tmp_path.rglob("evil*"))


def test_no_network(repo: Hub, raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.pull("hf:owner/repo:Q8_0")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="can't be reached") as caught:
        store.pull("hf:owner/repo:Q4_K_M")
    assert one_line(caught)
    assert store.resolve("hf:owner/repo:Q8_0") == path
    assert store.resolve("hf:owner/repo") == path  # better than nothing


def test_offline_mode(repo: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.pull("hf:owner/repo")
    repo.log.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert store.resolve("hf:owner/repo") == store.pull("hf:owner/repo") == path
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        store.resolve("hf:owner/repo:Q8_0")
    with pytest.raises(DownloadError, match="not in the cache"):
        store.resolve("hf:other/repo")
    assert not repo.log


def test_without_huggingface_hub(repo: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.pull("hf:owner/repo")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert store.resolve("hf:owner/repo") == path  # what is cached needs no client
    with pytest.raises(DownloadError, match="pip install huggingface_hub"):
        store.resolve("hf:owner/repo:Q8_0")


# ---------------------------------------------------------------- list and remove


def test_list_and_remove_only_what_belongs(repo: Hub, raw: bytes, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download

    store.pull("hf:owner/repo")
    store.pull("hf:owner/repo:Q8_0")
    hf_hub_download("owner/repo", "README.md", endpoint=repo.endpoint, cache_dir=tmp_path / "hf")
    repo.log.clear()
    names = {"hf:owner/repo:Q4_K_M", "hf:owner/repo:Q8_0"}
    assert {model.name for model in store.list_models()} == names
    with pytest.raises(ModelNotFoundError, match="2 models .* name one of: Q4_K_M, Q8_0"):
        store.remove("hf:owner/repo")
    assert store.remove("hf:owner/repo:Q8_0") == len(raw) + 1
    assert [model.name for model in store.list_models()] == ["hf:owner/repo:Q4_K_M"]
    assert store.remove("hf:owner/repo") == len(raw)
    folder = hub_cache.repo_dir("owner/repo")
    assert (folder / "snapshots" / COMMIT / "README.md").read_bytes() == b"text"
    assert len(list((folder / "blobs").iterdir())) == 1
    with pytest.raises(ModelNotFoundError, match="not in the cache"):
        store.remove("hf:owner/repo")
    assert not repo.log


def test_removing_the_last_file_removes_the_repository(repo: Hub) -> None:
    store.pull("hf:owner/repo")
    store.remove("hf:owner/repo")
    assert not hub_cache.repo_dir("owner/repo").exists()


def test_p71_dangling_links_are_no_models(repo: Hub) -> None:
    path = store.pull("hf:owner/repo")
    path.resolve().unlink()
    assert not store.list_models() and hub.find_cached(Reference("owner/repo")) is None
    assert store.remove("hf:owner/repo") == 0
    assert not path.is_symlink()


def test_a_link_out_of_the_cache_is_not_followed(repo: Hub, tmp_path: Path) -> None:
    path = store.pull("hf:owner/repo")
    mine = tmp_path / "mine.gguf"
    path.resolve().rename(mine)
    path.unlink()
    path.symlink_to(mine)
    store.remove("hf:owner/repo")
    assert mine.exists()


def test_p71_unwritable_cache(repo: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file" / "hf"))
    with pytest.raises(ModelError, match="can't write .*file.*HF_HOME"):
        store.resolve("hf:owner/repo")
