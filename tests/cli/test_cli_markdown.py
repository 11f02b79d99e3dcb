"""Markdown that is rendered while it streams: block by block, nothing twice, nothing lost."""

import io
import random
import re

import pytest
from rich.console import Console

from llamba.cli.markdown import MarkdownStream, render, split_finished

TEXT = """# Sky

Blue because of *scattering*, see [this](http://x.org).

1. one
   - inner
2. two

```python
def f():

    return 1
```

| a | b |
|---|---|
| 1 | 2 |

> quote
> goes on

The end: 2 < 3 <b>bold</b>
"""


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def console(**kwargs) -> Console:
    return Console(file=io.StringIO(), width=60, height=12, color_system=None, **kwargs)


def test_blocks_are_finished_when_the_next_one_starts() -> None:
    assert split_finished("one\ntwo") == ("", "one\ntwo")
    assert split_finished("one\n\ntwo") == ("one\n\n", "two")
    assert split_finished("- a\n- b\n") == ("", "- a\n- b\n")
    assert split_finished("a\n\n```\nx\n\ny\n") == ("a\n\n", "```\nx\n\ny\n")
    for cut in range(len(TEXT)):
        finished, rest = split_finished(TEXT[:cut])
        assert finished + rest == TEXT[:cut]


@pytest.mark.parametrize("seed", range(5))
def test_streamed_equals_rendered_at_once(seed, monkeypatch) -> None:
    monkeypatch.setattr("llamba.cli.markdown.REFRESH_S", 0.0)
    rng = random.Random(seed)
    streamed = console(force_terminal=False)
    with MarkdownStream(streamed) as stream:
        at = 0
        while at < len(TEXT):
            length = rng.randint(1, 9)
            stream.write(TEXT[at : at + length])
            at += length
    whole = console()
    whole.print(render(TEXT))

    def lines(c) -> list[str]:
        text = "\n".join(line.rstrip() for line in c.file.getvalue().strip("\n").split("\n"))
        return re.sub("\n\n+", "\n\n", text).split("\n")

    assert lines(streamed) == lines(whole)


def test_live_block_is_never_taller_than_the_screen(monkeypatch) -> None:
    monkeypatch.setattr("llamba.cli.markdown.REFRESH_S", 0.0)
    screen = console(force_terminal=True)
    with MarkdownStream(screen) as stream:
        stream.write("```\n")
        for i in range(40):
            stream.write(f"line {i}\n")
            assert stream.live._live_render._shape is None or (
                stream.live._live_render._shape[1] <= 11
            )
        stream.write("```\n")
    assert "line 0" in shown(screen)


def test_an_interrupted_stream_shows_what_it_had() -> None:
    screen = console(force_terminal=False)
    with pytest.raises(KeyboardInterrupt), MarkdownStream(screen) as stream:
        stream.write("half of **it")
        raise KeyboardInterrupt
    assert "half of" in shown(screen)
