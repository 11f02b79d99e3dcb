"""The chat page in a real browser: trouble, safety, Markdown, looks and access."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("playwright", reason="needs the package playwright")
pytest.importorskip("fastapi", reason="needs llamba[server]")
pytest.importorskip("uvicorn", reason="needs llamba[server]")

from llamba.cli.server.api_keys import ApiKeys  # noqa: E402  (after the skips)


def load(name: str) -> Any:
    """A module beside this file, which is in no package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


fake_api, web_site = load("fake_api"), load("web_site")
Answer, Site = fake_api.Answer, web_site.Site
expect, probe, until = web_site.expect, web_site.probe, web_site.until
# Fixtures are found by their names in this module.
server, api, chrome = web_site.server, web_site.api, web_site.chrome
site, phone, blank = web_site.site, web_site.phone, web_site.blank

# Trouble


def test_a_refused_request_is_explained(site) -> None:
    site.api.says(
        Answer(status=400, message="max_tokens: -1 must be at least 1"),
        Answer(status=500, message=""),
    )
    site.ask("Hi")
    expect(site.last(".problem-card")).to_contain_text("max_tokens: -1 must be at least 1")
    site.last(".problem-card").get_by_text("Try again").click()
    expect(site.last(".problem-card")).to_contain_text("The server answered 500")
    site.api.says("Now it works.")
    site.last(".problem-card").get_by_text("Try again").click()
    expect(site.last()).to_have_text("Now it works.")
    expect(site.answers).to_have_count(1)
    expect(site.questions).to_have_count(1)


def test_an_error_in_the_middle_keeps_the_text(site) -> None:
    site.api.says(
        Answer("Half of it is here", error_after=3, message="the model ran out of memory"),
        Answer("Cut off as well", cut_after=2),
    )
    site.ask("Hi")
    expect(site.last()).to_have_text("Half of it i")
    expect(site.last(".problem-card")).to_contain_text("the model ran out of memory")
    site.ask("Go on")
    expect(site.last(".problem-card")).to_contain_text("connection ended before")
    site.ask("Once more")
    roles = [each["role"] for each in site.api.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


def test_a_question_without_an_answer_is_sent_with_the_next(site) -> None:
    """Many templates insist on alternating roles."""
    site.api.says(Answer(status=500, message="broken"), "Both.", "Three.")
    site.ask("One")
    site.ask("Two")
    assert site.api.requests[1]["messages"] == [{"role": "user", "content": "One\n\nTwo"}]
    site.ask("Three")
    assert [each["role"] for each in site.api.requests[2]["messages"]] == [
        "user",
        "assistant",
        "user",
    ]


def test_a_busy_server_is_asked_again(site) -> None:
    busy = Answer(status=503, message="All places are taken.", headers={"Retry-After": "300"})
    site.api.says(busy, "There you are.")
    site.ask("Hi", wait=False)
    said = re.compile(r"All places are taken\. Trying again in (300|2\d\d) s\.")
    expect(site.last(".progress")).to_contain_text(said)
    assert len(site.api.requests) == 1
    site.fire_timers()
    expect(site.last()).to_have_text("There you are.")
    assert len(site.api.requests) == 2


def test_a_loading_server(chrome, api) -> None:
    loading = Answer(status=503, message="The model is loading.", headers={"Retry-After": "300"})
    api.models_failures = [loading]
    site = Site(chrome, api)
    expect(site.page.locator("#banner")).to_contain_text("The model is loading.")
    site.fire_timers()
    expect(site.page.locator("#model")).to_be_enabled()
    expect(site.page.locator("#banner")).to_be_hidden()
    site.close()


def test_a_server_that_is_away(site, server) -> None:
    page = site.page
    server.stop()
    try:
        site.ask("Anybody?")
        expect(site.last(".problem-card")).to_contain_text("does not answer")
    finally:
        server.start()
    site.last(".problem-card").get_by_text("Try again").click()
    expect(site.last()).to_have_text("Fine.")
    expect(page.locator(".answer")).to_have_count(1)


def test_the_key_is_asked_for(chrome, api) -> None:
    api.key = "secret"
    site = Site(chrome, api)
    page = site.page
    expect(page.locator("#key-dialog")).to_be_visible()
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#key-wrong")).to_be_visible()
    page.fill("#key", "secret")
    page.keyboard.press("Enter")
    expect(page.locator("#model")).to_be_enabled()
    expect(page.locator("#banner")).to_be_hidden()
    site.ask("Hi")
    expect(site.last()).to_have_text("Fine.")
    assert page.evaluate("sessionStorage.getItem('llamba.key')") == "secret"
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    # The key changes while the page is open.
    api.key = "other"
    site.ask("Again", wait=False)
    page.fill("#key", "other")
    page.keyboard.press("Enter")
    expect(site.answers).to_have_count(2)
    expect(site.last()).to_have_text("Fine.")
    site.close()


def test_the_key_as_a_password(chrome) -> None:
    """The real server asks for the key of the page itself, as browsers can: a login."""
    api = fake_api.FakeApi()
    api.app = ApiKeys(api.app, keys=("secret",))
    with fake_api.serving(api):
        login = {"username": "", "password": "secret"}
        site = Site(chrome, api, http_credentials=login)
        expect(site.page.locator("#model")).to_be_enabled()
        site.ask("Hi")
        expect(site.last()).to_have_text("Fine.")
        site.close()


# Safety

EVIL = """<script>window.pwned = 1</script>

<img src=x onerror="window.pwned = 2"> <svg onload=window.pwned=3> <iframe srcdoc="<script>1">

[click](javascript:window.pwned=4) [data](data:text/html,<script>1</script>)
[tab](java\tscript:alert(1)) [case](JaVaScRiPt:alert(1)) [entity](&#106;avascript:alert(1))
<javascript:alert(1)> [rel](/v1/models) [file](file:///etc/passwd) [vb](vbscript:x)
![track](https://evil.example/pixel.png) ![js](javascript:alert(1))
[fine](https://example.org/a?b=c&d="onmouseover=1) <https://example.org/auto> mail <mailto:a@b.org>

```html"><img src=x onerror=window.pwned=5>
</code></pre><script>window.pwned = 6</script>
```

| <b>x</b> | `<i>` |
|---|---|
| <img src=x onerror=window.pwned=7> | <style>*{display:none}</style> |

# <h1 onclick=1>heading</h1>
- <a href="javascript:window.pwned=8">item</a>
> <form action="https://evil.example"><input></form>
"""


def test_nothing_a_model_writes_is_run(site) -> None:
    site.api.says(Answer(EVIL, thinking=EVIL), "Fine.")
    site.ask("<img src=x onerror=window.pwned=9>")
    site.page.locator(".thinking summary").click()
    turns = site.page.locator("#turns")
    for tag in ("script", "img", "iframe", "style", "form", "b", "i", "object"):
        found = turns.locator("i:not(.dots i)" if tag == "i" else tag)
        assert found.count() == 0, tag
    assert turns.locator("svg:not(.icon)").count() == 0
    hrefs = turns.locator("a").evaluate_all("all => all.map((a) => a.href)")
    assert hrefs
    assert {urlsplit(each).scheme for each in hrefs} == {"https", "mailto"}
    rels = turns.locator("a").evaluate_all("all => all.map((a) => a.rel)")
    assert all("noopener" in rel for rel in rels)
    attributes = turns.locator("*").evaluate_all(
        "all => [...new Set(all.flatMap((node) => node.getAttributeNames()))]"
    )
    assert not [name for name in attributes if name.startswith("on") or name in ("style", "src")]
    site.reload()  # out of the store it is as harmless
    expect(site.answers).to_have_count(1)
    assert site.page.evaluate("window.pwned") is None
    assert not any("evil" in each for each in site.requests)


def test_imported_files_are_only_text(site, tmp_path) -> None:
    """A prepared file can't bring code, foreign fields or a circle of turns."""
    turns = [
        {"id": "a", "parent": "b", "role": "user", "text": "<img src=x onerror=window.pwned=1>"},
        {"id": "b", "parent": "a", "role": "assistant", "text": EVIL, "model": {"x": 1}},
        {"id": "__proto__", "parent": "b", "role": "system", "text": "no such role"},
        {"id": "c", "parent": "c", "role": "user", "text": 5},
    ]
    conversation = {
        "id": "../x",
        "title": "<script>window.pwned=2</script>",
        "turns": turns,
        "leaf": "b",
        "settings": {"temperature": "<b>", "top_k": "3", "evil": 1},
    }
    file = tmp_path / "evil.json"
    file.write_text(
        json.dumps({"format": "llamba-conversations", "conversations": [conversation, None, 3]})
    )
    with site.page.expect_file_chooser() as chooser:
        site.page.click("#import")
    chooser.value.set_files(file)
    site.page.locator("#conversations .title").click()
    expect(site.questions).to_have_text("<img src=x onerror=window.pwned=1>")
    expect(site.page.locator("#settings-count")).to_have_text("1")
    assert site.page.evaluate("window.pwned") is None


# Markdown


def render(page, text: str, *, step: int = 0) -> str:
    """The HTML of a text; with `step` it arrives in pieces of that length."""
    return probe(page, "render", [text, step])


MARKDOWN = {
    "plain & <b>text</b>": "<p>plain &amp; &lt;b&gt;text&lt;/b&gt;</p>",
    "**bold** *it* __b__ _i_ ~~no~~": (
        "<p><strong>bold</strong> <em>it</em> <strong>b</strong> <em>i</em> <del>no</del></p>"
    ),
    "***both*** **a *b* c**": (
        "<p><em><strong>both</strong></em> <strong>a <em>b</em> c</strong></p>"
    ),
    "2 * 3 * 4 snake_case_name 5*3": "<p>2 * 3 * 4 snake_case_name 5*3</p>",
    r"\*not\* \_it\_ \\": r"<p>*not* _it_ \</p>",
    "`a*b*` ``c ` d`` `open": "<p><code>a*b*</code> <code>c ` d</code> `open</p>",
    "one\ntwo": "<p>one<br>two</p>",
    "# A\n## B #\n####### no": "<h3>A</h3><h4>B</h4><p>####### no</p>",
    "text\n---\nmore": "<p>text</p><hr><p>more</p>",
    "[a](https://x.org/b_(c) 'title') https://y.org/z.": (
        '<p><a href="https://x.org/b_(c)">a</a> <a href="https://y.org/z">https://y.org/z</a>.</p>'
    ),
    "[no](javascript:x) [n](rel) [b]": "<p><span>no</span> <span>n</span> [b]</p>",
    "- a\n- b\n  - c\n    - d\n- e": (
        "<ul><li>a</li><li>b<ul><li>c<ul><li>d</li></ul></li></ul></li><li>e</li></ul>"
    ),
    "3. a\n4. b\n  - c": '<ol start="3"><li>a</li><li>b<ul><li>c</li></ul></li></ol>',
    "1. a\n\n   ```\n   x\n     y\n   ```\n\n2. b": (
        "<ol><li>a<pre><code>x\n  y</code></pre></li><li>b</li></ol>"
    ),
    "42.": "<p>42.</p>",
    "1.\n2. b": '<p>1.</p><ol start="2"><li>b</li></ol>',
    "- [ ] a\n- [x] b": '<ul><li><input>a</li><li><input checked="">b</li></ul>',
    "> a\n> - b\n> > c": (
        "<blockquote><p>a</p><ul><li>b</li></ul><blockquote><p>c</p></blockquote></blockquote>"
    ),
    "```py\nx = 1\n\n# y\n```\nend": "<pre><code>x = 1\n\n# y\n</code></pre><p>end</p>",
    "~~~~\n```\n~~~~": "<pre><code>```</code></pre>",
    "```\nopen\n": "<pre><code>open\n</code></pre>",
    "| a | b |\n|---|:-:|\n| `x|y` | 2 |\n| 3 |\n\nend": (
        "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td><code>x|y</code>"
        "</td><td>2</td></tr><tr><td>3</td><td></td></tr></tbody></table></div><p>end</p>"
    ),
    r"\(x_1 * y\) and $5 to $6": "<p><span>x_1 * y</span> and $5 to $6</p>",
    "a&lt;b &#65; &nope;<br>c": "<p>a&lt;b A &amp;nope;<br>c</p>",
    "![alt](https://x.org/i.png)": '<p><a href="https://x.org/i.png">alt</a></p>',
    "a\r\n\r\nb": "<p>a</p><p>b</p>",
    "": "",
}


def test_markdown(blank) -> None:
    for text, html in MARKDOWN.items():
        found = render(blank, text)
        # Whether a code block ends in a newline shows nowhere.
        assert found.replace("\n</code>", "</code>") == html.replace("\n</code>", "</code>"), text


def test_markdown_in_pieces_gives_the_same(blank) -> None:
    whole = "\n\n".join([*MARKDOWN, EVIL])
    for text in [*MARKDOWN, whole]:
        for step in (1, 3, 7):
            assert render(blank, text, step=step) == render(blank, text), (step, text)


def test_markdown_never_shows_half_a_mark(blank) -> None:
    """While it is written: no stray signs that turn into something else a moment later."""
    text = "A **bold** word, `code` and [a link](https://x.org).\n\n- item *one*\n- two\n\n## End"
    shown = probe(blank, "everyPrefix", text)
    assert not [each for each in shown if re.search(r"[*`#\[\]]|https", each)]


def test_markdown_keeps_what_is_finished(blank) -> None:
    """Finished blocks and lines of code are built once: the nodes stay the same."""
    assert probe(blank, "keepsNodes")


def test_markdown_is_quick(blank) -> None:
    """Long answers and hostile ones: the work stays about linear. The limit is wide on purpose."""
    least: dict[str, float] = {}
    for _ in range(5):  # the clock also runs while others have the processor
        for name, ms in probe(blank, "times").items():
            least[name] = min(ms, least.get(name, ms))
        if max(least.values()) < 4000:
            break
    assert max(least.values()) < 4000, least


def test_colouring_never_changes_the_text(blank) -> None:
    assert set(probe(blank, "colours")) == {"", *"acdfknpstv"}


# Looks and access


def luminance(color: str) -> float:
    """WCAG's relative luminance of "rgb(r, g, b)"."""
    parts = [int(float(each)) / 255 for each in re.findall(r"[\d.]+", color)[:3]]
    linear = [
        each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrasts(page) -> list[tuple[float, str]]:
    """Contrast of every visible text with what lies behind it, worst first."""
    rows = []
    for front, back, text in probe(page, "colourPairs"):
        bright, dark = sorted((luminance(front), luminance(back)), reverse=True)
        rows.append(((bright + 0.05) / (dark + 0.05), text))
    return sorted(rows)


def test_light_and_dark(site) -> None:
    page = site.page
    code = '# c\n@f\nclass A(B):\n  x = f("s") + 1 # c\n'
    site.api.says(
        Answer(f"Text `code` [l](https://x.org)\n\n> q\n\n```py\n{code}```", thinking="t")
    )
    site.ask("Hello")
    background = "getComputedStyle(document.documentElement).backgroundColor"
    page.evaluate("document.activeElement.blur()")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # it follows the system
        assert (luminance(page.evaluate(background)) > 0.5) == (scheme == "light")
        worst = contrasts(page)
        assert worst[0][0] >= 4.5, worst[:3]
        page.click("#open-settings")
        worst = contrasts(page)
        assert worst[0][0] >= 4.5, worst[:3]
        page.click("#settings-close")
    page.click("#theme")  # system -> light
    assert luminance(page.evaluate(background)) > 0.5
    page.click("#theme")
    page.emulate_media(color_scheme="light")
    site.reload()
    assert luminance(page.evaluate(background)) < 0.5  # dark, though the system is light
    expect(page.locator("#theme")).to_have_attribute("aria-label", re.compile("Dark"))


def test_on_a_phone(phone) -> None:
    page = phone.page
    wide = "word" * 60
    table = "| " + " | ".join(["column name"] * 8) + " |\n" + "|---" * 8 + "|\n"
    phone.api.says(f"{wide}\n\n```\n{wide}\n```\n\n{table}\n\n`{wide}` https://x.org/{wide}\n")
    page.fill("#prompt", wide)
    page.press("#prompt", "Enter")  # a new line here: fingers send with the button
    assert page.input_value("#prompt").endswith("\n")
    page.tap("#send")
    expect(phone.answers).to_have_count(1)
    phone.idle()

    assert probe(page, "fits")
    page.tap("#menu")
    expect(page.locator("#sidebar")).to_be_visible()
    assert page.locator("#main").evaluate("(main) => main.inert")
    assert probe(page, "fits")
    page.tap("#new-chat")  # the drawer makes way
    expect(page.locator("#sidebar")).to_be_hidden()
    expect(page.locator("#welcome")).to_be_visible()
    page.tap("#open-settings")
    assert probe(page, "fits")
    sizes = page.locator("input:visible, textarea:visible, select").evaluate_all(
        "all => all.map((one) => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert min(sizes) >= 16  # below that iOS zooms in
    page.tap("#settings-close")
    page.set_viewport_size({"width": 740, "height": 360})
    assert probe(page, "fits")


def test_keyboard(site) -> None:
    page = site.page
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert not site.api.requests
    page.keyboard.press("Enter")
    site.idle()
    assert site.api.requests[0]["messages"][0]["content"] == "one\ntwo"
    page.keyboard.press("ArrowUp")  # edits the last question
    expect(page.locator(".edit textarea")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    # A word that is still being composed (Japanese, Chinese) is not sent.
    page.fill("#prompt", "へんかん")
    page.locator("#prompt").evaluate(
        "(area) => area.dispatchEvent(new KeyboardEvent('keydown', "
        "{key: 'Enter', isComposing: true, bubbles: true, cancelable: true}))"
    )
    assert len(site.api.requests) == 1


def test_everything_has_a_name(site) -> None:
    """Buttons and fields are named for those who hear the page; answers are read out by blocks."""
    site.api.says("First block.\n\nSecond block.")
    site.ask("Hello")
    nameless = probe(site.page, "nameless")
    assert not nameless
    log = site.page.locator("#announcer")
    expect(log).to_have_attribute("aria-live", "polite")
    expect(log.locator("p")).to_have_text(["First block.", "Second block."])
    ids = site.page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))


def test_scrolling_up_stays(site) -> None:
    page = site.page
    site.api.says("\n\n".join(f"Paragraph {i}" for i in range(60)))
    site.ask("Fill the page")
    assert probe(page, "distance") < 3
    lines = [f"Line {i}\n\n" for i in range(80)]
    at = [len("".join(lines[:count])) // Answer.piece_len for count in (8, 42)]
    site.api.says(Answer("".join(lines), stops=tuple(at)))
    site.ask("And more", wait=False)
    expect(site.last()).to_contain_text("Line 6")
    assert probe(page, "distance") < 40  # follows
    probe(page, "noteRest")
    page.mouse.move(600, 300)
    page.mouse.wheel(0, -400)
    expect(page.locator("#to-end")).to_be_visible()
    until(lambda: page.evaluate("window.restedAt") > 390)  # the wheel's way takes a moment
    top = page.evaluate("document.querySelector('#scroller').scrollTop")
    site.api.go()
    expect(site.last()).to_contain_text("Line 40")
    assert abs(page.evaluate("document.querySelector('#scroller').scrollTop") - top) < 2  # stays
    page.click("#to-end")
    site.api.go()
    site.idle()
    assert probe(page, "distance") < 3
    expect(page.locator("#to-end")).to_be_hidden()


def test_what_is_opened_stays_in_sight(site) -> None:
    """A thinking block or a question that is opened by hand is not scrolled away."""
    page = site.page
    site.api.says(Answer("Short.", thinking="\n\n".join(f"Thought {i}" for i in range(60))))
    site.ask("First")
    site.api.says("\n\n".join(f"Line {i}" for i in range(12)))
    site.ask("Second")
    page.locator(".thinking summary").first.click()
    expect(page.get_by_text("Thought 0", exact=True)).to_be_in_viewport()
    page.locator(".question").first.hover()
    page.locator('[aria-label="Edit and ask again"]').first.click()
    expect(page.locator(".edit textarea")).to_be_in_viewport()
    page.keyboard.press("Enter")  # the answer to it is followed again
    expect(site.answers).to_have_count(1)
    site.idle()
    assert probe(page, "distance") < 3


def test_reduced_motion(site) -> None:
    site.page.emulate_media(reduced_motion="reduce")
    longest = site.page.evaluate(
        "Math.max(...[...document.querySelectorAll('*')].map((node) => "
        "parseFloat(getComputedStyle(node).animationDuration)))"
    )
    assert longest < 0.01
