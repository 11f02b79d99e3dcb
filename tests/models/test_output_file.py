"""Files that are written under a name: what names there are, links, and writers side by side."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llamba.errors import OutputError
from llamba.models import output_file
from llamba.models.output_file import OutputFile


def write(path: Path, data: bytes = b"new", **options: Any) -> None:
    with OutputFile(path, **options) as file:
        file.write(data)


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127, "a" * 241])
def test_a_name_as_long_as_names_may_be(name: str, tmp_path: Path) -> None:
    write(tmp_path / name)
    assert (tmp_path / name).read_bytes() == b"new" and os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["a" * 256, "a" * 5000])
def test_a_name_that_is_too_long(name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="can't be written: File name too long"):
        OutputFile(tmp_path / name)
    assert not os.listdir(tmp_path)


def test_what_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    """Not the link: it may be /dev/stdout, or lead to a larger disk."""
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "m", tmp_path / "m"
    link.symlink_to(target)
    with pytest.raises(OutputError, match="exists already"):
        OutputFile(link)
    for data in (b"first", b"second"):  # a link that leads nowhere, and to a file
        write(link, data, overwrite=True)
        assert link.is_symlink() and target.read_bytes() == data
    file = OutputFile(link, overwrite=True)
    aside = file.set_aside()
    assert aside and aside[0] == target and aside[1].read_bytes() == b"second"
    assert link.is_symlink() and not target.exists()
    os.replace(aside[1], target)
    file.discard()
    assert os.listdir(tmp_path / "far") == ["m"]


def test_a_link_to_no_ordinary_file(tmp_path: Path) -> None:
    (tmp_path / "m").symlink_to("/dev/null")
    with pytest.raises(OutputError, match="not an ordinary file"):
        OutputFile(tmp_path / "m", overwrite=True)


def test_a_file_is_taken_for_a_leftover_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer comes between the making and the locking; the first makes a new one."""
    calls: list[Path] = []

    def name_and_wait(path: Path) -> Path:
        calls.append(path.with_name(f".m.{len(calls)}.tmp"))
        return calls[-1]

    def lock_late(fd: int, how: int) -> None:
        if len(calls) == 1 and how == fcntl.LOCK_EX:
            output_file._remove_leftovers(tmp_path / "m")
        flock(fd, how)

    flock = fcntl.flock
    monkeypatch.setattr(output_file, "_other_name", name_and_wait)
    monkeypatch.setattr(fcntl, "flock", lock_late)
    write(tmp_path / "m")
    assert len(calls) == 2 and os.listdir(tmp_path) == ["m"]


def test_an_interrupt_while_room_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(OutputFile, "_reserve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        OutputFile(tmp_path / "m", num_bytes=10)
    assert not os.listdir(tmp_path)


def test_an_interrupt_before_the_context_is_entered(tmp_path: Path) -> None:
    """The file goes with the program that made it, and with no fork of it."""
    code = (
        "import os, sys\n"
        "from llamba.models.output_file import OutputFile\n"
        "file = OutputFile(sys.argv[1])\n"
        "if not (child := os.fork()):\n"
        "    sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "print(len(os.listdir(os.path.dirname(sys.argv[1]))), flush=True)\n"
        "raise KeyboardInterrupt\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "m")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert (run.stdout, run.returncode) == ("1\n", -signal.SIGINT)
    assert not os.listdir(tmp_path)
