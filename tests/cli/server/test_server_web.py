"""The chat page in a real browser: a conversation, and those that were kept."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs the package playwright")
pytest.importorskip("fastapi", reason="needs llamba[server]")
pytest.importorskip("uvicorn", reason="needs llamba[server]")

httpx = pytest.importorskip("httpx", reason="needs httpx")

from llamba.cli.server import pages  # noqa: E402  (after the skips)


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

# The files


def test_files_and_headers(api, server) -> None:
    with httpx.Client(base_url=api.url, timeout=60) as client:
        for path, kind in [
            ("/", "text/html"),
            ("/web/app.js", "text/javascript"),
            ("/web/page.css", "text/css"),
            ("/web/icon.svg", "image/svg+xml"),
            ("/favicon.ico", "image/svg+xml"),
            ("/robots.txt", "text/plain"),
        ]:
            reply = client.get(path)
            assert (reply.status_code, reply.headers["content-type"].split(";")[0]) == (200, kind)
            assert reply.headers["cache-control"] == "no-cache"
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert reply.headers["referrer-policy"] == "no-referrer"
            policy = reply.headers["content-security-policy"].split("; ")
            assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} < set(
                policy
            )
            assert "unsafe" not in reply.headers["content-security-policy"]
        head = client.head("/web/app.js")
        assert head.status_code == 200 and not head.content
        assert int(head.headers["content-length"]) > 1000


def test_unchanged_files_are_not_sent_again(api, server) -> None:
    with httpx.Client(base_url=api.url, timeout=60) as client:
        tag = client.get("/").headers["etag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}'):
            again = client.get("/", headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
        assert client.get("/", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "..%2fpages.py",
        "%2e%2e%2fpages.py",
        "../pages.py",
        "pages.py",
        "nothing.js",
        "index.html%00",
    ],
)
def test_only_the_files_of_the_table(api, server, name) -> None:
    with httpx.Client(base_url=api.url, timeout=60) as client:
        assert client.get(f"/web/{name}").status_code == 404


def test_the_page_is_not_part_of_the_documented_api(api, server) -> None:
    assert not {"/", "/web/{name}", "/favicon.ico"} & set(api.app.openapi()["paths"])


def test_the_page_names_no_other_place() -> None:
    """Works offline: nothing in the sources points to another host."""
    for name, page in pages.load_pages().items():
        text = page.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://[a-z0-9]|(?:src|href)=\"//|@import", text), name
        assert not (name.endswith(".css") and "url(" in text), name
        if name.endswith(".js"):
            assert not re.search(r"\.(?:inner|outer)HTML|insertAdjacentHTML|document\.write", text)
        assert len(text.splitlines()) <= 300, name


def test_the_first_page_names_every_file(api, server) -> None:
    """A module that isn't named is only found out about once another one has arrived."""
    index = pages.load_pages()["index.html"].body.decode()
    named = re.findall(r'(?:src|href)="web/([\w.-]+)"', index)
    assert sorted({*named, "index.html"}) == sorted(pages.load_pages())
    assert len(named) == len(set(named))


# A conversation


def test_an_answer_streams(site) -> None:
    site.api.says(Answer("First part. Second part.", stops=(3,)))
    site.ask("Hello", wait=False)
    expect(site.questions).to_have_text("Hello")
    expect(site.last()).to_have_text("First part.")
    expect(site.page.locator("#send")).to_have_attribute("aria-label", re.compile("Stop"))
    site.api.go()
    site.idle()
    expect(site.last()).to_have_text("First part. Second part.")
    stats = site.last(".stats summary")
    expect(stats).to_contain_text("42.5 tok/s")
    expect(stats).to_contain_text("6 tokens")
    expect(stats).to_contain_text("first token after")
    stats.click()
    expect(site.last(".stats p")).to_contain_text("31 tokens, 12 of them kept from before")
    (request,) = site.api.requests
    assert request == {
        "model": "alpha-1b",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_history_goes_along(site) -> None:
    site.api.says("One.", "Two.")
    site.ask("first")
    site.ask("second")
    assert site.api.requests[1]["messages"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "second"},
    ]
    expect(site.page).to_have_title("first · llamba")


def test_stop(site) -> None:
    site.api.says(Answer("word " * 500, stops=(10,)))
    site.ask("Talk", wait=False)
    expect(site.last()).to_contain_text("word word")
    site.page.click("#send")
    site.idle()
    expect(site.last(".note")).to_have_text("Stopped.")
    until(lambda: site.api.cancelled == 1)
    site.api.says(Answer("word " * 500, stops=(10,)), "Good.")
    site.ask("Again", wait=False)
    expect(site.last()).to_contain_text("word word")
    site.page.keyboard.press("Escape")
    site.idle()
    until(lambda: site.api.cancelled == 2)
    site.ask("And now?")
    expect(site.last()).to_have_text("Good.")
    assert [each["role"] for each in site.api.requests[2]["messages"]] == [
        *("user", "assistant") * 2,
        "user",
    ]


def test_regenerate_keeps_both_versions(site) -> None:
    site.api.says("Version one.", "Version two.")
    site.ask("Tell me")
    site.last('[aria-label="Write it again"]').click()
    expect(site.last()).to_have_text("Version two.")
    expect(site.answers).to_have_count(1)
    assert site.api.requests[0]["messages"] == site.api.requests[1]["messages"]
    expect(site.last(".count")).to_have_text("2 / 2")
    site.last('[aria-label="Earlier version"]').click()
    expect(site.last()).to_have_text("Version one.")
    site.ask("Go on")
    assert site.api.requests[2]["messages"][1]["content"] == "Version one."


def test_edit_branches(site) -> None:
    site.api.says("About cats.", "More cats.", "About dogs.")
    site.ask("Cats?")
    site.ask("More?")
    site.page.locator(".question").first.hover()
    site.page.locator('[aria-label="Edit and ask again"]').first.click()
    site.page.fill(".edit textarea", "Dogs?")
    site.page.press(".edit textarea", "Enter")
    expect(site.last()).to_have_text("About dogs.")
    expect(site.questions).to_have_text(["Dogs?"])
    assert site.api.requests[2]["messages"] == [{"role": "user", "content": "Dogs?"}]
    site.page.locator('[aria-label="Earlier version"]').click()
    expect(site.questions).to_have_text(["Cats?", "More?"])
    # Escape leaves everything as it was.
    site.page.locator(".question").first.hover()
    site.page.locator('[aria-label="Edit and ask again"]').first.click()
    site.page.press(".edit textarea", "Escape")
    expect(site.questions).to_have_text(["Cats?", "More?"])


def test_delete_a_turn_and_undo(site) -> None:
    site.api.says("One.", "Two.", "Three.")
    for text in ("first", "second", "third"):
        site.ask(text)
    site.page.locator(".question").nth(1).hover()
    site.page.locator('[aria-label^="Delete this question"]').nth(1).click()
    expect(site.questions).to_have_text(["first", "third"])
    expect(site.answers).to_have_count(2)
    site.page.locator("#toast").get_by_text("Undo").click()
    expect(site.questions).to_have_text(["first", "second", "third"])
    site.page.locator(".question").first.hover()
    site.page.locator('[aria-label^="Delete this question"]').first.click()
    expect(site.questions).to_have_text(["second", "third"])
    site.ask("fourth")
    sent = [each["content"] for each in site.api.requests[-1]["messages"]]
    assert sent == ["second", "Two.", "third", "Three.", "fourth"]


def test_copy_an_answer_and_its_code(site) -> None:
    text = "Look:\n\n```python\nif x < 1:\n    print('a & b')\n```\n"
    site.api.says(text)
    site.ask("Code please")
    site.last(".copy-code").click()
    expect(site.last(".copy-code")).to_have_text("Copied")
    assert site.page.evaluate("navigator.clipboard.readText()") == "if x < 1:\n    print('a & b')"
    site.last('[aria-label="Copy the answer"]').click()
    until(lambda: site.page.evaluate("navigator.clipboard.readText()") == text)
    expect(site.last(".lang")).to_have_text("python")
    expect(site.last(".h-k")).to_have_text("if")


def test_copy_without_the_clipboard_api(site) -> None:
    """Over plain http on another machine the browser has no navigator.clipboard."""
    site.api.says("To copy.")
    site.ask("Hi")
    site.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    site.page.evaluate(
        "addEventListener('copy', () => (window.copied = getSelection().toString()))"
    )
    site.last('[aria-label="Copy the answer"]').click()
    assert site.page.evaluate("window.copied") == "To copy."


def test_thinking(site) -> None:
    site.api.says(Answer("42.", thinking="Let me *count* them all.", stops=(1, 6)))
    site.ask("How many?", wait=False)
    expect(site.last(".thinking .markdown")).to_be_visible()
    # A tenth of a second is told; it is counted from piece to piece.
    site.page.evaluate("new Promise((done) => setTimeout(done, 150))")
    site.api.go()
    expect(site.last(".summary")).to_contain_text("Thinking for")
    site.api.go()
    site.idle()
    expect(site.last(".summary")).to_have_text(re.compile(r"Thought for \d"))
    expect(site.last(".thinking .markdown")).to_be_hidden()  # closed by itself
    expect(site.last()).to_have_text("42.")
    site.last(".thinking summary").click()
    expect(site.last(".thinking em")).to_have_text("count")
    site.ask("Next")
    assert site.api.requests[1]["messages"][1] == {"role": "assistant", "content": "42."}


def test_thinking_switch(site) -> None:
    chip = site.page.locator("#thinking")
    sent = []
    for label in ("auto", "on", "off"):
        expect(chip).to_contain_text(label)
        site.ask(f"With {label}")
        sent.append(site.api.requests[-1].get("chat_template_kwargs"))
        chip.click()
    assert sent == [None, {"enable_thinking": True}, {"enable_thinking": False}]


def test_settings_are_sent_and_kept(site) -> None:
    page = site.page
    page.click("#open-settings")
    page.fill("#system", "Be brief.")
    values = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "max_tokens": 99,
        "seed": 7,
        "repeat_penalty": 1.1,
    }
    for name, value in values.items():
        page.fill(f"#set-{name}", str(value))
    page.fill("#set-top_k", "2.5")  # invalid: said, and not taken
    expect(page.locator("#set-top_k-problem")).to_have_text("must be a whole number")
    page.fill("#set-top_k", "20")
    page.click("#settings-default")
    page.keyboard.press("Escape")
    expect(page.locator("#settings-count")).to_have_text("8")
    site.ask("Hi")
    request = site.api.requests[0]
    assert {name: request[name] for name in values} == values
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    site.reload()
    page.click("#open-settings")
    expect(page.locator("#set-seed")).to_have_value("7")
    page.click("#settings-reset")
    page.click("#settings-close")
    site.ask("Plain")
    assert not set(values) & set(site.api.requests[1])
    # The start of new conversations is another matter.
    page.click("#new-chat")
    expect(page.locator("#settings-count")).to_have_text("8")


def test_model_choice(site) -> None:
    page = site.page
    expect(page.locator("#model option")).to_have_text(["alpha-1b", "beta-3b"])
    page.select_option("#model", "beta-3b")
    site.ask("Hi")
    assert site.api.requests[0]["model"] == "beta-3b"
    page.click("#new-chat")
    expect(page.locator("#model")).to_have_value("beta-3b")  # the last one used
    page.select_option("#model", "alpha-1b")
    page.locator("#conversations .title").click()
    expect(page.locator("#model")).to_have_value("beta-3b")  # this conversation's own


# Conversations


def test_conversations_outlive_the_page(site) -> None:
    page = site.page
    site.api.says(Answer("Kept.\n\n- a\n- b", thinking="Hm."), "Another.")
    site.ask("Remember this")
    page.click("#new-chat")
    site.ask("Something else")
    site.reload()
    expect(site.questions).to_have_text(["Something else"])  # the address names it
    page.locator("#conversations .title", has_text="Remember").click()
    expect(site.last("li")).to_have_text(["a", "b"])
    expect(site.last(".stats")).to_contain_text("42.5 tok/s")
    page.go_back()
    expect(site.questions).to_have_text(["Something else"])


def test_rename_search_delete_undo(site) -> None:
    page = site.page
    for text in ("Apples", "Bananas"):
        site.api.says(f"All about {text.lower()}.")
        site.ask(text)
        page.click("#new-chat")
    titles = page.locator("#conversations .title")
    expect(titles).to_have_text(["Bananas", "Apples"])
    page.fill("#search", "ABOUT APPLES")
    expect(titles).to_have_text(["Apples"])
    page.fill("#search", "pears")
    expect(page.locator("#no-conversations")).to_have_text("Nothing found.")
    page.fill("#search", "")
    expect(titles).to_have_count(2)
    titles.last.hover()
    page.click("[aria-label='Rename \"Apples\"']")
    page.keyboard.type("Fruit")
    page.keyboard.press("Enter")
    expect(titles).to_have_text(["Bananas", "Fruit"])
    expect(page.locator("#welcome")).to_be_visible()  # it was renamed, and not opened as well
    titles.last.hover()
    page.click("[aria-label='Delete \"Fruit\"']")
    expect(titles).to_have_text(["Bananas"])
    page.locator("#toast").get_by_text("Undo").click()
    expect(titles).to_have_text(["Bananas", "Fruit"])
    titles.first.hover()
    page.click("[aria-label='Delete \"Bananas\"']")
    expect(titles).to_have_text(["Fruit"])
    site.reload()
    expect(titles).to_have_text(["Fruit"])


def test_export_and_import(site, tmp_path) -> None:
    page = site.page
    site.api.says("Exported.")
    site.ask("Take me along")
    with page.expect_download() as started:
        page.click("#export")
    saved = tmp_path / "saved.json"
    started.value.save_as(saved)
    assert json.loads(saved.read_text())["format"] == "llamba-conversations"
    page.locator("#conversations li").hover()
    page.click("[aria-label='Delete \"Take me along\"']")
    expect(page.locator("#conversations .title")).to_have_count(0)
    with page.expect_file_chooser() as chooser:
        page.click("#import")
    chooser.value.set_files(saved)
    page.locator("#conversations .title").click()
    expect(site.last()).to_have_text("Exported.")
    saved.write_text('{"format": "something"}')
    with page.expect_file_chooser() as chooser:
        page.click("#import")
    chooser.value.set_files(saved)
    expect(page.locator("#toast")).to_contain_text("holds no llamba conversations")


def test_an_answer_goes_on_while_another_is_read(site) -> None:
    page = site.page
    site.ask("Short")
    page.click("#new-chat")
    site.api.says(Answer("one two three four five six seven", stops=(1, 4)))
    site.ask("Long", wait=False)
    expect(site.last()).to_have_text("one")
    page.locator("#conversations .title", has_text="Short").click()
    expect(site.last()).to_have_text("Fine.")
    expect(page.locator("#conversations .pulse")).to_have_count(1)
    site.idle()  # this conversation can be used meanwhile
    site.api.go()
    page.locator("#conversations .title", has_text="Long").click()
    expect(site.last()).to_have_text("one two three fo")
    site.api.go()
    expect(site.last()).to_have_text("one two three four five six seven")
    site.idle()
    expect(page.locator("#conversations .pulse")).to_have_count(0)
    site.reload()
    expect(site.last()).to_have_text("one two three four five six seven")


def test_two_tabs_show_the_same(site) -> None:
    other = site.open()
    site.api.says("From the first tab.")
    site.page.bring_to_front()
    site.ask("Hello")
    other.locator("#conversations .title").click()
    expect(other.locator(".answer .markdown").last).to_have_text("From the first tab.")


def test_a_full_disk_is_said(site) -> None:
    site.page.evaluate(
        "void (IDBObjectStore.prototype.put = () => "
        "{ throw new DOMException('no room', 'QuotaExceededError'); })"
    )
    site.ask("Hello")
    expect(site.page.locator("#toast")).to_contain_text("no room left")
    expect(site.last()).to_have_text("Fine.")


@pytest.mark.model("smollm2")
@pytest.mark.kernels
def test_with_the_real_server(chrome, live) -> None:
    """Its guards let the page in, and its stream has the shape that the page reads."""
    site = Site(chrome, fake_api.Address(f"{live.url}/"))
    site.ready()
    site.page.click("#open-settings")
    site.page.fill("#set-max_tokens", "12")
    site.page.fill("#set-temperature", "0")
    site.page.click("#settings-close")
    expect(site.page.locator("#model")).to_have_value(live.model)
    site.ask("What is the capital of France?")
    expect(site.last()).to_contain_text(re.compile(r"\w+"))
    expect(site.last(".stats summary")).to_contain_text("tok/s")
    expect(site.last(".stats summary")).to_contain_text("tokens")
    site.ask("And of Italy?")
    expect(site.last(".stats p")).to_contain_text("of them kept from before")
    site.close()
