"""The group: what it costs to start, and how errors leave."""

import errno
import os
import re
import subprocess
import sys

import pytest

from llamba import __version__
from llamba.cli.console import fail
from llamba.cli.main import COMMANDS, GROUPS, cli
from llamba.errors import ContextLengthError, LlambaError, ModelNotFoundError, ResourceError

HEAVY = ("numba", "numpy", "rich", "prompt_toolkit", "tokenizers", "jinja2", "llvmlite", "gguf")


def python(code, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **kwargs)


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["run", "--help"], ["chat", "--help"]])
def test_help_and_version_import_nothing_heavy(args) -> None:
    code = (
        "import sys; from llamba.cli.main import cli\n"
        f"try: cli.main({args!r}, prog_name='llamba')\n"
        f"except SystemExit: print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert python(code).stdout.splitlines()[-1] == "[]"


def test_help_imports_little() -> None:
    """What a start takes, beside the interpreter and click: a few modules, whatever the machine."""
    code = (
        "import sys, click; before = set(sys.modules)\n"
        "from llamba.cli.main import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: print(*sorted(set(sys.modules) - before))"
    )
    imported = python(code).stdout.splitlines()[-1].split()
    ours = [name for name in imported if name.startswith("llamba")]
    assert ours == ["llamba", "llamba.cli", "llamba.cli.main", "llamba.errors"]
    assert len(imported) < 30, imported


def test_version(invoke) -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"llamba, version {__version__}\n")


def test_every_command_of_the_table_exists_and_has_help(invoke) -> None:
    for name in COMMANDS:
        result = invoke(name, "--help")
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"Usage: llamba {name}")
    assert all(name in invoke("--help").stdout for name in COMMANDS)


def test_reporting_commands_take_json() -> None:
    for name in COMMANDS:
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        options = {flag for p in command.params for flag in p.opts}
        assert "--json" in options or name in ("chat", "serve", "kernels"), (
            name
        )  # kernels list has it


def test_unknown_command_names_a_near_one(invoke) -> None:
    result = invoke("chta")
    assert result.exit_code == 2
    assert result.stderr == "error: no command 'chta': did you mean chat? (see llamba --help)\n"


@pytest.mark.parametrize("args", [["--nonsense"], ["run", "--temp", "x", "Hi"], ["show"]])
def test_wrong_command_lines_are_one_line(invoke, args) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1


def test_no_arguments_show_the_help(invoke) -> None:
    assert "Make and judge models:" in invoke().output


def test_the_help_has_each_command_in_its_group(invoke) -> None:
    blocks = dict(part.split(":\n", 1) for part in invoke("--help").stdout.split("\n\n")[3:-1])
    assert list(blocks) == list(GROUPS)
    shown = {
        title: [line.split()[0] for line in re.findall(r"^  \w.*", text, re.MULTILINE)]
        for title, text in blocks.items()
    }
    assert shown == {title: list(group) for title, group in GROUPS.items()}


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ModelNotFoundError("no model 'x'"), 3, "error: no model 'x'"),
        (ContextLengthError("too long"), 2, "error: too long"),
        (LlambaError(), 1, "error: LlambaError"),  # PAINS P16
        (LlambaError("two\nlines"), 1, "error: two lines"),
        (KeyboardInterrupt(), 130, ""),
        (ZeroDivisionError("by zero"), 1, "error: unexpected ZeroDivisionError: by zero"),
        (PermissionError(13, "Permission denied", "/x"), 1, "error: PermissionError"),
        (MemoryError(), 7, "error: not enough memory"),
    ],
)
def test_errors_are_one_line_and_a_code(invoke, llm, error, code, text) -> None:
    llm.says = [error]
    if isinstance(error, KeyboardInterrupt):
        llm.chat = lambda *_, **__: (_ for _ in ()).throw(error)
    result = invoke("run", "Hi there")
    assert result.exit_code == code
    assert text in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 1
    assert "Traceback" not in result.output
    assert llm.closed


def test_traceback_for_those_who_ask(invoke, llm, monkeypatch) -> None:
    llm.says = [ZeroDivisionError("by zero")]
    assert "LLAMBA_DEBUG=1" in invoke("run", "Hi there").stderr
    monkeypatch.setenv("LLAMBA_DEBUG", "1")
    assert "Traceback" in invoke("run", "Hi there").stderr


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_broken_pipe_is_quiet(tmp_path) -> None:
    code = (
        "import sys\nfrom llamba.cli import main, doctor\n"
        "doctor.examine = lambda: {'threads': 1} | {str(i): 'x' * 100 for i in range(100000)}\n"
        "sys.argv = ['llamba', 'doctor', '--no-measure']\nmain.main()"
    )
    shell = f"'{sys.executable}' -c \"$CODE\" | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, env={**os.environ, "CODE": code}
    )
    assert result.stderr == ""
    assert result.stdout.splitlines()[-1] == "141"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("args", ["--help", "list --json"])
def test_a_full_disk_is_one_line(tmp_path, args) -> None:
    done = subprocess.run(
        f"{sys.executable} -m llamba {args} > /dev/full",
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, "LLAMBA_CACHE": str(tmp_path)},
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: can't write the output: No space left")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell's >&-")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_fault(tmp_path, closed) -> None:
    done = subprocess.run(
        f"{sys.executable} -m llamba list {closed}",
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, "LLAMBA_CACHE": str(tmp_path)},
    )
    assert (done.returncode, "fault" in done.stderr) == (0, False)


@pytest.mark.parametrize("error", [MemoryError("4 TiB"), OSError(errno.ENOMEM, "no")])
def test_no_memory_is_a_resource_error(invoke, llm, error) -> None:
    llm.says = [error]
    result = invoke("run", "Hi", input="")
    assert result.exit_code == ResourceError.exit_code
    assert result.stderr.startswith("error: not enough memory: ")


def test_errors_move_no_cursor(capsys) -> None:
    fail("no file \x1b[31m.gguf\nhere \ufffd ü")
    assert capsys.readouterr().err == "error: no file \\x1b[31m.gguf here \ufffd ü\n"


def test_module_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "llamba", "--version"], capture_output=True, text=True
    )
    assert result.stdout == f"llamba, version {__version__}\n"
