"""Saved prefixes: the KV pages of the prefix cache in a file, for the next start of the same model.

Layout, little endian: the header (_HEADER); the identity's description as UTF-8; for each page its
parent (int32, -1: none) and its number of tokens (int32); all token ids (int32); each page's
SHA-256; the SHA-256 of all of this; then the pages, `page_nbytes` bytes each. Parents come first.
"""

import contextlib
import errno
import hashlib
import os
import stat
import struct
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from ..errors import PrefixFileError
from .batch import PAGE_SIZE
from .model_identity import ModelIdentity

_MAGIC = b"LLAMBAKV"
_VERSION = 1
# magic, version, positions in a page, pages, bytes of the description, tokens, bytes of a page,
# identity
_HEADER = struct.Struct("<8s4IQQ32s")
_DIGEST = hashlib.sha256().digest_size
_MAX_DESCRIPTION = 4096


class PrefixPool(Protocol):
    """What is asked of the page pool. Token ids are those from the first position on."""

    @property
    def num_free(self) -> int:
        """Pages that hold nothing."""
        ...

    def cached_chains(self) -> Iterable[tuple[int, tuple[int, ...], int]]:
        """(namespace, token ids up to the page's end, page) of findable pages, parents first."""
        ...

    def adopt(
        self, namespace: int, parent_tokens: tuple[int, ...], page_tokens: tuple[int, ...]
    ) -> int | None:
        """A free page that is found from now on as the continuation of a chain.

        None: there is no free page, the chain is not there, or the page is already.
        """
        ...


class PageMemory(Protocol):
    """What is asked of the program."""

    page_nbytes: int

    def read_page(self, page: int) -> bytes:
        """A page's bytes."""
        ...

    def write_page(self, page: int, data: bytes) -> None:
        """Replace them."""
        ...


@dataclass(frozen=True, slots=True)
class Saved:
    """What went into a file: of `num_cached` pages those that the size limit allowed."""

    num_pages: int
    num_cached: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Restored:
    """What came out of a file: of `num_saved` pages those that found a free one."""

    num_pages: int
    num_tokens: int
    num_saved: int


@dataclass(frozen=True, slots=True)
class _Node:
    """A page in the file."""

    parent: int
    token_ids: tuple[int, ...]


def save(
    path: str | Path,
    pool: PrefixPool,
    memory: PageMemory,
    identity: ModelIdentity,
    *,
    max_bytes: int | None = None,
) -> Saved:
    """Write the findable pages of the identity's namespace to a file. Nothing may run meanwhile.

    The file is replaced as a whole when the new one is safely on the disk; until then, and on every
    error, the old one stays. Without any page nothing is written.

    Args:
        max_bytes: pages are left out, the last ones first, to stay below this size.

    Raises:
        PrefixFileError: it can't be written; the message says why.
    """
    nodes: list[_Node] = []
    pages: list[int] = []
    found: dict[bytes, int] = {b"": -1}  # digest of a chain -> node
    num_cached = 0
    size = _HEADER.size + len(_description(identity)) + _DIGEST
    for namespace, chain, page in pool.cached_chains():
        if namespace != identity.namespace:
            continue
        num_cached += 1
        start = (len(chain) - 1) // PAGE_SIZE * PAGE_SIZE
        parent = found.get(_key(chain[:start]))
        token_ids = tuple(chain[start:])
        added = 8 + 4 * len(token_ids) + _DIGEST + memory.page_nbytes
        if parent is None or (max_bytes is not None and size + added > max_bytes):
            continue
        size += added
        found[_key(chain)] = len(nodes)
        nodes.append(_Node(parent, token_ids))
        pages.append(page)
    if nodes:
        check_target(path)
        try:
            target = Path(os.path.realpath(path))  # a link stays one
            _write(target, nodes, pages, memory, identity)
        except OSError as error:
            raise _unwritable(path, error, size) from error
    return Saved(len(nodes), num_cached, size if nodes else 0)


def check_target(path: str | Path) -> None:
    """Raise PrefixFileError if `save` could not write there, as far as that is known before."""
    target = Path(os.path.realpath(path))
    try:
        with _open(target) as file:
            if file.read(len(_MAGIC)) not in (_MAGIC, b""):  # a typing error must not cost a file
                raise PrefixFileError(
                    f"{path}: not a file of saved prefixes, so it is not overwritten; choose "
                    "another name"
                )
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unwritable(path, error) from error
    if not os.access(target.parent, os.W_OK | os.X_OK):
        why = "can't be written" if target.parent.is_dir() else "does not exist"
        raise PrefixFileError(f"{path}: the folder {target.parent} {why}; choose another place")
    if target.exists() and not os.access(target, os.W_OK):
        raise PrefixFileError(f"{path}: write-protected; choose another name")


def restore(
    path: str | Path, pool: PrefixPool, memory: PageMemory, identity: ModelIdentity
) -> Restored:
    """Fill free pages with those of a file, parents first, as many as there is room for.

    The whole file is checked before the first page is taken. Nothing may run meanwhile.

    Raises:
        FileNotFoundError: there is no such file.
        PrefixFileError: it can't be read, is damaged, or belongs to another model or other
            settings. Nothing was restored.
    """
    try:
        with _open(path) as file:
            reader = _Reader(str(path), file, memory, identity)
            reader.verify_pages()
            return _adopt(reader, pool, memory, identity.namespace)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = error.strerror or error
        raise PrefixFileError(f"{path}: saved prefixes can't be read: {why}") from error


def _adopt(reader: "_Reader", pool: PrefixPool, memory: PageMemory, namespace: int) -> Restored:
    num_pages = num_tokens = 0
    for index, node in enumerate(reader.nodes):
        if not pool.num_free:
            break
        data = reader.page(index)  # before the page is taken: the file may change under us
        page = pool.adopt(namespace, reader.chain(node.parent), node.token_ids)
        if page is not None:
            memory.write_page(page, data)
            num_pages += 1
            num_tokens += len(node.token_ids)
    return Restored(num_pages, num_tokens, len(reader.nodes))


class _Reader:
    """A file that is sound up to its pages, and of this model."""

    def __init__(
        self, name: str, file: BinaryIO, memory: PageMemory, identity: ModelIdentity
    ) -> None:
        self._name, self._file, self._nbytes = name, file, memory.page_nbytes
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEADER.size)
        if head[: len(_MAGIC)] != _MAGIC[: len(head)] or not head:
            raise PrefixFileError(f"{name}: not a file of saved prefixes; choose another name")
        if len(head) < _HEADER.size:
            raise self._damaged("it ends in its header")
        _, version, page_size, count, about_len, num_tokens, nbytes, digest = _HEADER.unpack(head)
        if version != _VERSION:
            raise PrefixFileError(
                f"{name}: saved prefixes in file format {version}, but this llamba reads format "
                f"{_VERSION}; delete the file to start afresh"
            )
        rest = about_len + count * (8 + _DIGEST) + 4 * num_tokens + _DIGEST
        expected = _HEADER.size + rest + count * nbytes
        if expected != size or about_len > _MAX_DESCRIPTION:  # so `rest` is bounded, too
            raise self._damaged(f"it has {size:,} bytes and should have {expected:,}")
        table = file.read(rest)
        if hashlib.sha256(head + table[:-_DIGEST]).digest() != table[-_DIGEST:]:
            raise self._damaged("the checksum of its table is wrong")
        if digest != identity.digest:
            about = identity.differences(table[:about_len].decode("utf-8", "replace"))
            raise PrefixFileError(
                f"{name}: saved prefixes of another model or with other settings ({about}); "
                "delete the file or choose another name"
            )
        if (page_size, nbytes) != (PAGE_SIZE, memory.page_nbytes):
            raise self._damaged("its pages have another size")
        self.nodes = self._read_nodes(table[about_len:], count, num_tokens)
        at = len(table) - (count + 1) * _DIGEST
        self._digests = [table[at + i * _DIGEST : at + (i + 1) * _DIGEST] for i in range(count)]
        self._start = _HEADER.size + rest

    def verify_pages(self) -> None:
        """Read every page once and compare its checksum."""
        for index in range(len(self.nodes)):
            self.page(index)

    def page(self, index: int) -> bytes:
        """A page's bytes."""
        self._file.seek(self._start + index * self._nbytes)
        data = self._file.read(self._nbytes)
        if hashlib.sha256(data).digest() != self._digests[index]:
            raise self._damaged(f"the checksum of page {index} is wrong")
        return data

    def chain(self, index: int) -> tuple[int, ...]:
        """The token ids up to the end of a page; none for -1."""
        parts = []
        while index >= 0:
            parts.append(self.nodes[index].token_ids)
            index = self.nodes[index].parent
        return tuple(token_id for part in reversed(parts) for token_id in part)

    def _read_nodes(self, table: bytes, count: int, num_tokens: int) -> list[_Node]:
        """The pages' places in the tree, checked: what wrote them may have been wrong."""
        places = np.frombuffer(table, "<i4", 2 * count).reshape(count, 2).tolist()
        token_ids = np.frombuffer(table, "<i4", num_tokens, offset=8 * count).tolist()
        nodes: list[_Node] = []
        at = 0
        for index, (parent, length) in enumerate(places):
            full = -1 <= parent < index and (
                parent < 0 or len(nodes[parent].token_ids) == PAGE_SIZE
            )
            if not full or not 1 <= length <= PAGE_SIZE:
                raise self._damaged(f"page {index} has no sound place in it")
            nodes.append(_Node(parent, tuple(token_ids[at : at + length])))
            at += length
        if at != num_tokens or len(set(nodes)) != count:
            raise self._damaged("its pages and tokens do not agree")
        return nodes

    def _damaged(self, why: str) -> PrefixFileError:
        return PrefixFileError(
            f"{self._name}: damaged saved prefixes ({why}); nothing was restored, delete the file "
            "to start afresh"
        )


def _unwritable(path: str | Path, error: OSError, size: int = 0) -> PrefixFileError:
    why = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        why = f"the disk is full (it needs {size:,} bytes)"
    return PrefixFileError(f"{path}: saved prefixes can't be written: {why}")


def _key(chain: Sequence[int]) -> bytes:
    return hashlib.sha256(np.asarray(chain, "<i4").tobytes()).digest() if len(chain) else b""


def _description(identity: ModelIdentity) -> bytes:
    return identity.description.encode("utf-8", "replace")[:_MAX_DESCRIPTION]


def _open(path: str | Path) -> BinaryIO:
    """A regular file; a pipe or device, which would block or never end, is refused."""
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PrefixFileError(f"{path}: not a regular file; choose another name")
    return open(fd, "rb")


def _write(
    path: Path, nodes: list[_Node], pages: list[int], memory: PageMemory, identity: ModelIdentity
) -> None:
    """Into a temporary file of its own, private to the user, then under the name at once."""
    about = _description(identity)
    num_tokens = sum(len(node.token_ids) for node in nodes)
    sizes = PAGE_SIZE, len(nodes), len(about), num_tokens, memory.page_nbytes
    head = _HEADER.pack(_MAGIC, _VERSION, *sizes, identity.digest)
    places = np.array([(n.parent, len(n.token_ids)) for n in nodes], "<i4").tobytes()
    token_ids = np.array([t for n in nodes for t in n.token_ids], "<i4").tobytes()
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name[:80]}.", suffix=".new", dir=path.parent)
    try:
        with open(fd, "wb") as file:
            table_len = len(about) + len(places) + len(token_ids) + _DIGEST * (len(nodes) + 1)
            file.seek(len(head) + table_len)
            digests = []
            for page in pages:
                data = memory.read_page(page)
                assert len(data) == memory.page_nbytes
                digests.append(hashlib.sha256(data).digest())
                file.write(data)
            table = about + places + token_ids + b"".join(digests)
            file.seek(0)
            file.write(head + table + hashlib.sha256(head + table).digest())
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power failure, where the system can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
