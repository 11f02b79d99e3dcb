"""Saved prefixes: what is saved comes back, and nothing else ever does."""

import errno
import hashlib
import os
import random
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from llamba.errors import PrefixFileError
from llamba.runtime import prefix_file
from llamba.runtime.batch import PAGE_SIZE
from llamba.runtime.model_identity import ModelIdentity
from llamba.runtime.pages import PagePool
from llamba.runtime.prefix_file import Restored, check_target, restore, save

MODEL = ModelIdentity(b"m" * 32, "llamba 1, model.gguf")
OTHER = ModelIdentity(b"o" * 32, "llamba 1, other.gguf")
Chain = tuple[int, ...]


class Pool(PagePool):
    """A pool of pages with their memory."""

    def __init__(self, num_pages: int = 64, page_nbytes: int = 100) -> None:
        super().__init__(num_pages)
        self.page_nbytes = page_nbytes
        self.memory: dict[int, bytes] = {}

    @property
    def chains(self) -> dict[tuple[int, Chain], int]:
        return {(namespace, chain): page for namespace, chain, page in self.cached_chains()}

    def read_page(self, page: int) -> bytes:
        return self.memory[page]

    def write_page(self, page: int, data: bytes) -> None:
        assert len(data) == self.page_nbytes
        self.memory[page] = data

    def put(self, chain: Sequence[int], namespace: int = 0) -> None:
        """A whole chain, page by page."""
        for start in range(0, len(chain), PAGE_SIZE):
            parents, tokens = tuple(chain[:start]), tuple(chain[start : start + PAGE_SIZE])
            page = self.adopt(namespace, parents, tokens)
            if page is not None:
                self.memory[page] = content(parents + tokens, self.page_nbytes)

    def verify(self) -> None:
        """Every page holds what belongs to its tokens."""
        self.check()
        assert len(self.memory) == len(self.chains)
        for (_, chain), page in self.chains.items():
            assert self.memory[page] == content(chain, self.page_nbytes)


def content(chain: Chain, num_bytes: int) -> bytes:
    return (hashlib.sha256(repr(chain).encode()).digest() * 8)[:num_bytes]


@pytest.fixture
def pool() -> Pool:
    """Two prompts that share a page, a short one, and one of a namespace of its own."""
    pool = Pool()
    pool.put(range(100))
    pool.put([*range(32), *range(500, 520)])
    pool.put([7, 8, 9])
    pool.put([1, 2, 3], namespace=5)
    return pool


@pytest.fixture
def saved(pool: Pool, tmp_path: Path) -> Path:
    """A file with the pool's six public pages."""
    path = tmp_path / "prefixes"
    assert save(path, pool, pool, MODEL).num_pages == 6
    return path


def test_what_is_saved_comes_back(pool: Pool, saved: Path) -> None:
    new = Pool()
    assert restore(saved, new, new, MODEL) == Restored(num_pages=6, num_tokens=123, num_saved=6)
    new.verify()
    assert new.chains.keys() == {key for key in pool.chains if not key[0]}
    assert os.listdir(saved.parent) == ["prefixes"]
    assert saved.stat().st_mode & 0o777 == 0o600  # prompts are private


@pytest.mark.parametrize("num_pages", range(7))
def test_as_many_as_fit(saved: Path, num_pages: int) -> None:
    new = Pool(num_pages)
    result = restore(saved, new, new, MODEL)
    assert (result.num_pages, result.num_saved) == (num_pages, 6)
    new.verify()


@pytest.mark.parametrize("max_bytes", range(0, 1200, 50))
def test_a_size_limit(pool: Pool, tmp_path: Path, max_bytes: int) -> None:
    path = tmp_path / "limited"
    result = save(path, pool, pool, MODEL, max_bytes=max_bytes)
    assert result.num_cached == 6
    if not result.num_pages:
        assert not path.exists() and max_bytes < 600
        return
    assert path.stat().st_size == result.num_bytes <= max_bytes
    new = Pool()
    assert restore(path, new, new, MODEL).num_pages == result.num_pages
    new.verify()


def test_into_a_pool_that_has_some_of_it(saved: Path) -> None:
    new = Pool()
    new.put(range(50))  # shorter than the saved second page
    new.put([*range(32), *range(500, 600)])  # longer
    result = restore(saved, new, new, MODEL)
    assert (result.num_pages, result.num_saved) == (4, 6)
    new.memory = {page: new.memory[page] for page in new.chains.values()}
    new.verify()
    assert (0, tuple(range(100))) in new.chains


def test_an_empty_cache_does_not_replace_a_file(saved: Path) -> None:
    before = saved.read_bytes()
    assert save(saved, Pool(), Pool(), MODEL).num_pages == 0
    assert saved.read_bytes() == before


def test_missing_and_foreign(saved: Path, tmp_path: Path) -> None:
    new = Pool()
    with pytest.raises(FileNotFoundError):
        restore(tmp_path / "nosuch", new, new, MODEL)
    same_name = ModelIdentity(b"x" * 32, MODEL.description)
    with pytest.raises(PrefixFileError, match="the model file has other contents"):
        restore(saved, new, new, same_name)
    with pytest.raises(
        PrefixFileError, match=r"another model .*model.gguf, not other.gguf.*delete"
    ):
        restore(saved, new, new, OTHER)
    for text in (b"", b"GGUF", b"hello, this is a text of mine" * 20):
        (tmp_path / "mine").write_bytes(text)
        with pytest.raises(PrefixFileError, match="not a file of saved prefixes; choose another"):
            restore(tmp_path / "mine", new, new, MODEL)
    larger = Pool(page_nbytes=101)
    with pytest.raises(PrefixFileError, match="another size"):
        restore(saved, larger, larger, MODEL)
    assert not new.chains and not larger.chains


def test_not_a_regular_file(pool: Pool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null"), Path("/dev/zero")):
        for call in (restore, save):
            with pytest.raises(PrefixFileError, match="regular"):
                call(path, pool, pool, MODEL)


def test_files_of_others_are_not_overwritten(pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear aunt")
    with pytest.raises(PrefixFileError, match="not overwritten"):
        save(path, pool, pool, MODEL)
    assert path.read_text() == "Dear aunt"
    path.write_bytes(b"")  # as mktemp leaves it
    assert save(path, pool, pool, MODEL).num_pages == 6


def test_a_link_stays_one(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    save(tmp_path / "link", pool, pool, MODEL)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").is_file()
    assert restore(tmp_path / "link", new := Pool(), new, MODEL).num_pages == 6


def test_where_nothing_can_be_written(
    pool: Pool, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PrefixFileError, match="/no does not exist"):
        check_target(tmp_path / "no" / "file")
    with pytest.raises(PrefixFileError, match="/no does not exist"):
        save(tmp_path / "no" / "file", pool, pool, MODEL)
    check_target(saved)
    with pytest.raises(PrefixFileError, match="not a regular file"):
        check_target(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(PrefixFileError, match="can't be written; choose another place"):
        save(saved, pool, pool, MODEL)
    monkeypatch.undo()
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(denied))
    with pytest.raises(PrefixFileError, match="can't be read: Permission denied"):
        restore(saved, pool, pool, MODEL)


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_file(
    pool: Pool, saved: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    before = saved.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, function, full)
    pool.put(range(900, 1000))
    with pytest.raises(PrefixFileError, match=r"disk is full \(it needs [\d,]+ bytes\)"):
        save(saved, pool, pool, MODEL)
    assert saved.read_bytes() == before and os.listdir(saved.parent) == ["prefixes"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk(pool: Pool, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real error of the system, from write()."""
    before = saved.read_bytes()
    temporary = saved.with_name("temporary")

    def mkstemp(**_: object) -> tuple[int, str]:
        temporary.symlink_to("/dev/full")
        return os.open(temporary, os.O_WRONLY), str(temporary)

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    with pytest.raises(PrefixFileError, match="disk is full"):
        save(saved, pool, pool, MODEL)
    assert saved.read_bytes() == before and os.listdir(saved.parent) == ["prefixes"]


def test_an_interrupt_keeps_the_old_file(
    pool: Pool, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    pages = iter([pool.memory[0]])

    def read_page(page: int) -> bytes:
        for data in pages:
            return data
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "read_page", read_page)
    with pytest.raises(KeyboardInterrupt):
        save(saved, pool, pool, MODEL)
    assert saved.read_bytes() == before and os.listdir(saved.parent) == ["prefixes"]


def test_writers_do_not_mix(pool: Pool, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second writer comes while the first writes: the last one to finish wins, whole."""
    second = Pool()
    second.put(range(2000, 2200))
    read_page, calls = pool.read_page, []

    def interrupted(page: int) -> bytes:
        calls.append(page)
        if len(calls) == 3:
            assert save(saved, second, second, MODEL).num_pages == 7
            assert restore(saved, new := Pool(), new, MODEL).num_pages == 7
        return read_page(page)

    monkeypatch.setattr(pool, "read_page", interrupted)
    save(saved, pool, pool, MODEL)
    assert restore(saved, new := Pool(), new, MODEL).num_pages == 6
    new.verify()


def test_a_file_that_changes_after_the_check(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are compared with their checksums once more when they are taken."""
    new = Pool()
    data = bytearray(saved.read_bytes())
    data[-1] ^= 1
    verify = prefix_file._Reader.verify_pages

    def then_change(reader: prefix_file._Reader) -> None:
        verify(reader)
        with saved.open("r+b") as file:
            file.write(data)

    monkeypatch.setattr(prefix_file._Reader, "verify_pages", then_change)
    with pytest.raises(PrefixFileError, match="page 5"):
        restore(saved, new, new, MODEL)
    new.verify()  # those before it are right


def test_truncations(saved: Path) -> None:
    data = saved.read_bytes()
    for length in {*range(0, 200), *range(200, len(data), 7), len(data) - 1}:
        saved.write_bytes(data[:length])
        new = Pool()
        with pytest.raises(PrefixFileError, match="nothing was restored|not a file of saved"):
            restore(saved, new, new, MODEL)
        assert not new.chains and not new.memory
    saved.write_bytes(data + b"\0")
    with pytest.raises(PrefixFileError, match="should have"):
        restore(saved, new := Pool(), new, MODEL)


def test_every_bit_counts(saved: Path) -> None:
    """Any flipped bit, anywhere, and nothing is restored."""
    data = saved.read_bytes()
    rng = random.Random(0)
    for at in [*range(200), *rng.sample(range(200, len(data)), 500)]:
        changed = bytearray(data)
        changed[at] ^= 1 << rng.randrange(8)
        saved.write_bytes(changed)
        new = Pool()
        with pytest.raises(PrefixFileError):
            restore(saved, new, new, MODEL)
        assert not new.chains and not new.memory


def test_noise(saved: Path) -> None:
    """Cut, spliced and overwritten pieces."""
    data = saved.read_bytes()
    rng = random.Random(1)
    for _ in range(500):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            a, b = sorted(rng.sample(range(len(changed) + 1), 2))
            kind = rng.randrange(3)
            if kind == 0:
                del changed[a:b]
            elif kind == 1:
                changed[a:b] = rng.randbytes(b - a)
            else:
                changed[a:a] = changed[a:b]
        if changed == data:
            continue
        saved.write_bytes(changed)
        new = Pool()
        with pytest.raises(PrefixFileError):
            restore(saved, new, new, MODEL)
        assert not new.chains


def rewritten(data: bytes, **fields: int) -> bytes:
    """The file with other numbers in its header and a checksum that agrees with them."""
    names = ("magic", "version", "page_size", "count", "about", "tokens", "nbytes", "identity")
    header = dict(zip(names, prefix_file._HEADER.unpack_from(data), strict=True))
    size = prefix_file._HEADER.size
    rest = header["about"] + header["count"] * 40 + 4 * header["tokens"]
    table = data[size : size + rest]
    head = prefix_file._HEADER.pack(*(header | fields).values())
    return head + table + hashlib.sha256(head + table).digest() + data[size + rest + 32 :]


@pytest.mark.parametrize("field", ["version", "page_size", "count", "about", "tokens", "nbytes"])
@pytest.mark.parametrize("value", [0, 1, 33, 2**31, 2**32 - 1])
def test_numbers_that_can_not_be(saved: Path, field: str, value: int) -> None:
    """Huge counts are refused before anything of their size is allocated, sums that fit as well."""
    if (field, value) == ("version", 1):
        return
    saved.write_bytes(rewritten(saved.read_bytes(), **{field: value}))
    with pytest.raises(PrefixFileError, match="file format|damaged"):
        restore(saved, new := Pool(), new, MODEL)


def test_huge_64_bit_numbers(saved: Path) -> None:
    data = saved.read_bytes()
    for field in ("tokens", "nbytes"):
        for value in (2**63, 2**64 - 1):
            saved.write_bytes(rewritten(data, **{field: value}))
            with pytest.raises(PrefixFileError, match="damaged"):
                restore(saved, new := Pool(), new, MODEL)


@pytest.mark.parametrize(
    "places",
    [
        [(-2, 1)],  # no such parent
        [(0, 1)],  # its own parent
        [(-1, 0)],
        [(-1, -1)],
        [(-1, 33)],
        [(-1, 31), (0, 1)],  # a parent that is not full
        [(-1, 32), (1, 1)],  # a parent after it
        [(-1, 32), (0, 5), (0, 5)],  # the same page twice
        [(-1, 2**31 - 1)],
    ],
)
def test_a_tree_that_is_none(pool: Pool, tmp_path: Path, places: list[tuple[int, int]]) -> None:
    """A well-formed file of a faulty writer."""
    path = tmp_path / "crafted"
    num_tokens = sum(max(0, n) for _, n in places if n < 100)
    table = MODEL.description.encode()
    head = prefix_file._HEADER.pack(
        b"LLAMBAKV", 1, PAGE_SIZE, len(places), len(table), num_tokens, 100, MODEL.digest
    )
    table += b"".join(struct.pack("<2i", *place) for place in places)
    table += struct.pack("<i", 3) * num_tokens
    table += hashlib.sha256(bytes(100)).digest() * len(places)
    body = head + table + hashlib.sha256(head + table).digest() + bytes(100) * len(places)
    path.write_bytes(body)
    new = Pool()
    with pytest.raises(PrefixFileError, match="damaged"):
        restore(path, new, new, MODEL)
    assert not new.chains
