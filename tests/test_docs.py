"""Documentation is executed: commands, Python blocks, help texts, links and file names.

In the Markdown files a comment before a fenced block says what happens to it here:

    <!-- run -->             it is executed
    <!-- run: smollm2 -->    likewise, with this model (skips where it can't be had)
    <!-- help: llamba -->    it must be the output of `llamba --help`
    <!-- command: test -->   the README's own two command lines; `.ci/run` takes them from there

Without one, Python blocks must compile and `llamba` command lines must parse. After a change of the
command line, LLAMBA_UPDATE_DOCS=1 writes the help texts anew instead of comparing them.
"""

import ast
import doctest
import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from llamba import LLM
from llamba.cli.main import cli

ROOT = Path(__file__).resolve().parents[1]
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
PAINS = ROOT / "docs" / "PAINS.md"
# The roadmap and the log speak of files that are not there yet, or no longer.
CURRENT = [path for path in FILES if path.name not in ("ROADMAP.md", "LOG.md", "CHANGELOG.md")]

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block, its language, and what the comment before it asks for."""

    path: Path
    line: int
    language: str
    text: str
    mark: str

    @property
    def model(self) -> str:
        """The model that `run` names, "" for none."""
        return self.mark.removeprefix("run").lstrip(": ")

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


def blocks() -> list[Block]:
    """All fenced blocks of all files."""
    found = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("text"))
            found.append(Block(path, line, match["language"], match["text"], match["mark"] or ""))
    return found


ALL = blocks()
PYTHON = [block for block in ALL if block.language == "python"]
SHELL = [block for block in ALL if block.language in ("sh", "bash", "console")]
RUN = [
    pytest.param(block, marks=[pytest.mark.kernels] if block.model else [])
    for block in ALL
    if block.mark.startswith("run")
]
EXAMPLES = [
    path
    for folder in ("quant", "models", "runtime", "cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if re.search(r"^ +>>> ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
]
HELP = [block for block in ALL if block.mark.startswith("help: ")]


def llamba_lines(block: Block) -> list[list[str]]:
    """The arguments of every `llamba` call in a shell block, pipes and redirections cut off."""
    calls = []
    for line in block.text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = list(lexer)
        while "llamba" in words:
            words = words[words.index("llamba") + 1 :]
            end = next((i for i, w in enumerate(words) if set(w) <= set("|&;<>")), len(words))
            calls.append(words[:end])
            words = words[end:]
    return calls


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_blocks_compile(block: Block) -> None:
    ast.parse(block.text)


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_llamba_commands_parse(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command and option that a document shows exists."""
    monkeypatch.chdir(tmp_path)
    for words in llamba_lines(block):
        if not words or words[0].startswith("-"):
            assert words in ([], ["--help"], ["--version"])
            continue
        context = click.Context(cli, info_name="llamba")
        command = cli.get_command(context, words[0])
        assert command is not None, f"{block}: no command {words[0]}"
        for file in (w for w in words[1:] if re.fullmatch(r"[\w.-]+\.\w+", w)):
            (tmp_path / file).touch()
        try:
            command.make_context(words[0], words[1:], parent=context)
        except click.exceptions.Exit:
            pass  # --help
        except click.UsageError as error:
            pytest.fail(f"{block}: llamba {shlex.join(words)}: {error.format_message()}")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of an example: this Python's `llamba` comes first on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "llamba"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m llamba "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def execute(block: Block, text: str, folder: Path, environment: dict[str, str]) -> None:
    """Run a block in a folder of its own; its output is shown when it fails."""
    if block.language == "python":
        command = [sys.executable, "-c", text]
    else:
        command = [shutil.which("bash") or "sh", "-e", "-c", text]
    run = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, f"{block}\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}"


@pytest.mark.parametrize("block", RUN, ids=str)
def test_marked_blocks_run(
    block: Block, tmp_path: Path, environment: dict[str, str], models: Callable[[str], Path]
) -> None:
    """A model's name in the block is replaced by the file that the tests use."""
    text = block.text
    if block.model:
        name = rf"(?<![\w.-]){re.escape(block.model)}(?![\w.-])"
        path = str(models(block.model))
        text, count = re.subn(name, lambda _: path, text)
        assert count, f"{block} is marked for {block.model} but does not name it"
    execute(block, text, tmp_path, environment)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_examples_in_docstrings_run(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    result = doctest.testmod(importlib.import_module(".".join(("llamba", *parts))))
    assert result.attempted and not result.failed


@pytest.mark.kernels
@pytest.mark.model("smollm2")
def test_the_example_of_llm_runs(
    tmp_path: Path, environment: dict[str, str], model_path: Path
) -> None:
    code = textwrap.dedent((inspect.getdoc(LLM) or "").partition("Example:\n")[2])
    assert '"smollm2"' in code
    text = "from llamba import LLM, SamplingParams\n" + code.replace("smollm2", str(model_path))
    block = Block(ROOT / "runtime" / "llm.py", 0, "python", text, "run")
    execute(block, text, tmp_path, environment)


@pytest.mark.parametrize("block", HELP, ids=str)
def test_help_texts_are_current(block: Block) -> None:
    arguments = block.mark.removeprefix("help: ").split()[1:]
    run = subprocess.run(
        [sys.executable, "-m", "llamba", *arguments, "--help"],
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    text = "\n".join(line.rstrip() for line in run.stdout.splitlines()) + "\n"
    if os.environ.get("LLAMBA_UPDATE_DOCS"):
        document = block.path.read_text(encoding="utf-8")
        head = f"<!-- {block.mark} -->\n```{block.language}\n"
        assert head in document
        block.path.write_text(document.replace(head + block.text, head + text), encoding="utf-8")
        return
    assert block.text == text, f"{block}: LLAMBA_UPDATE_DOCS=1 writes it anew"


def test_the_readme_has_its_two_command_lines() -> None:
    commands = {b.mark: b.text.strip() for b in ALL if b.mark.startswith("command: ")}
    assert commands == {
        "command: run": 'python -m pip install . && llamba run "Why is the sky blue?"',
        "command: test": "python -m pip install '.[test]' && python -m pytest",
    }
    script = (ROOT / ".ci" / "run").read_text()
    assert "command: test" in script, ".ci/run must take the test command from the README"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{path.name} links to {target}"
        if anchor and there.suffix == ".md":
            heads = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}
            assert anchor in anchors, f"{path.name} links to {target}"


def test_pains_that_code_names_are_explained() -> None:
    """`P34` in a comment or a test leads to docs/PAINS.md."""
    rows = re.findall(r"^\| ((?:[PS]\d+(?:, )?)+) \|", PAINS.read_text(), flags=re.MULTILINE)
    explained = {code for row in rows for code in row.split(", ")}
    for path in ROOT.rglob("*.py"):
        inside = path.relative_to(ROOT).parts[0]
        if inside.startswith((".", "build")) or path == Path(__file__).resolve():
            continue
        named = set(re.findall(r"\b(P\d\d|S\d)\b", path.read_text(encoding="utf-8")))
        assert named <= explained, f"{path.relative_to(ROOT)} names {named - explained}"


@pytest.mark.parametrize("path", CURRENT, ids=lambda p: p.name)
def test_named_files_exist(path: Path) -> None:
    """A `folder/file.py` in code quotes is in the tree ( `<name>` stands for any )."""
    pattern = r"`((?:quant|models|runtime|cli|tests|docs|benchmarks|\.ci)/[\w./<>-]*)`"
    for name in re.findall(pattern, path.read_text(encoding="utf-8")):
        found = list(ROOT.glob(re.sub(r"<\w+>", "*", name.rstrip("/"))))
        assert found, f"{path.name} names {name}, which is not there"
