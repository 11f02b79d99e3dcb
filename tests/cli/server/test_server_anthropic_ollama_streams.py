"""Thinking, and streams that don't end well, in the dialects of Anthropic and Ollama.

The template of these tests opens the thinking and a budget ends it, so that any model thinks.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from llamba.cli.server import lifecycle as lifecycle_module

anthropic = pytest.importorskip("anthropic")
ollama = pytest.importorskip("ollama")

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n"
    "{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
STORY = [{"role": "user", "content": "Tell me a long story about a dog."}]


@pytest.fixture
def thinker(serve: Any, models: Callable[[str], Any]) -> Any:
    engine = {"context_length": 2048, "chat_template": TEMPLATE}
    return serve(models={"thinker": str(models("smollm2"))}, engine=engine)


def test_anthropic_thinking(thinker: Any) -> None:
    asked = {"model": "thinker", "max_tokens": 40, "messages": STORY}
    asked["extra_body"] = {"temperature": 0}
    thinking = {"type": "enabled", "budget_tokens": 12}
    with anthropic.Anthropic(base_url=thinker.url, api_key="none", max_retries=0) as client:
        # A cached prompt may change a token.
        client.messages.create(**asked, thinking=thinking)
        whole = client.messages.create(**asked, thinking=thinking)
        assert [block.type for block in whole.content] == ["thinking", "text"]
        assert whole.content[0].thinking and whole.content[0].signature
        assert 8 <= whole.usage.output_tokens_details.thinking_tokens <= 20
        with client.messages.stream(**asked, thinking=thinking) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_message()
        assert streamed.content[0].to_dict() == whole.content[0].to_dict()
        assert streamed.content[1].text == whole.content[1].text
        assert "thinking" in kinds and "signature" in kinds and "text" in kinds
        omitted = client.messages.create(**asked, thinking={**thinking, "display": "omitted"})
        assert omitted.content[0].thinking == ""
        assert omitted.content[0].signature == whole.content[0].signature
        # Without being asked for, there is none; and what was thought may come back.
        for extra in ({}, {"thinking": {"type": "disabled"}}):
            plain = client.messages.create(**asked, **extra)
            assert [block.type for block in plain.content] == ["text"]
        messages = [*STORY, whole.to_param(), {"role": "user", "content": "Go on."}]
        client.messages.create(**{**asked, "messages": messages, "max_tokens": 2})


def test_ollama_thinking(thinker: Any) -> None:
    options = {"temperature": 0, "num_predict": 8}
    asked = {"model": "thinker", "messages": STORY, "options": options}
    with ollama.Client(host=thinker.url) as client:
        assert "thinking" in client.show("thinker").capabilities
        client.chat(**asked)  # into the cache, which may change a token
        for think in (True, None, "low"):
            whole = client.chat(**asked, think=think)
            assert whole.message.thinking and whole.message.content == ""
            assert whole.done_reason == "length"
            items = list(client.chat(**asked, think=think, stream=True))
            streamed = "".join(item.message.thinking or "" for item in items)
            assert streamed == whole.message.thinking
        plain = client.chat(**asked, think=False)
        assert plain.message.thinking is None and plain.message.content
        generated = client.generate(
            model="thinker", prompt=STORY[0]["content"], options=options, think=True
        )
        assert generated.thinking == whole.message.thinking and generated.response == ""


def open_stream(http: Any, path: str, **more: Any) -> Any:
    body = {"model": "thinker", "messages": STORY, "stream": True, **more}
    return http.stream("POST", path, json=body)


ANTHROPIC = ("/v1/messages", {"max_tokens": 1900, "ignore_eos": True})
OLLAMA = ("/api/chat", {"options": {"ignore_eos": True}, "think": False})


@pytest.mark.parametrize(("path", "more"), [ANTHROPIC, OLLAMA])
def test_p61_who_leaves_frees_the_engine(thinker: Any, path: str, more: dict[str, Any]) -> None:
    for chunks in (0, 1, 3):  # before anything was read, and later
        with thinker.client() as http, open_stream(http, path, **more) as reply:
            assert reply.status_code == 200
            pieces = reply.iter_raw()
            for _ in range(chunks):
                next(pieces)
        thinker.idle()
    assert thinker.server.lifecycle.num_running == 0


def test_p61_who_leaves_before_the_first_byte_is_forgotten() -> None:
    """The generator of a stream's chunks was never begun, and so nothing in it can clean up."""
    from llamba.cli.server.lifecycle import ServerLifecycle
    from llamba.cli.server.running import Running
    from llamba.cli.server.tasks import TextTask

    said: list[str] = []
    lifecycle = ServerLifecycle(1.0)
    stream = SimpleNamespace(
        num_prompt_tokens=1, cancel=lambda: said.append("cancel"), close=lambda: said.append("end")
    )
    books = SimpleNamespace(started=lambda *_: None, ended=lambda *_: None)
    server: Any = SimpleNamespace(lifecycle=lifecycle, books=books)

    async def main() -> None:
        lease = AsyncExitStack()
        lease.callback(said.append, "lease")
        task = TextTask(model=None, prompts=["x"])
        running = Running(server, "ollama", Any, stream, lease, task)  # type: ignore[arg-type]
        assert lifecycle.num_running == 1
        running.close()
        running.close()
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert lifecycle.num_running == 0
    assert sorted(said) == ["cancel", "cancel", "end", "lease"]


@pytest.fixture
def stop(thinker: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Stops the server of `thinker`, whose engine does no further step before the grace time ends.

    So no answer is complete before; and the last words may take as long as they need.
    """
    expired = threading.Event()
    program, run = thinker.llm.program, thinker.llm.program.run

    def held(batch: Any) -> Any:
        expired.wait(60)
        return run(batch)

    def stop() -> None:
        monkeypatch.setattr(program, "run", held)
        thinker.runner.stop()

    monkeypatch.setattr(lifecycle_module, "LAST_WORDS_S", 60)
    thinker.runner.lifecycle.on_expiry.append(expired.set)
    yield stop
    expired.set()


@pytest.mark.parametrize(("path", "more"), [ANTHROPIC, OLLAMA])
def test_a_server_that_stops_says_so(
    thinker: Any, stop: Callable[[], None], path: str, more: dict[str, Any]
) -> None:
    """The grace time is a second; what is cut off ends with an error, not as if complete."""
    with thinker.client() as http, open_stream(http, path, **more) as reply:
        pieces = reply.iter_text()
        text = next(pieces)
        stop()
        text += "".join(pieces)
    if path == "/v1/messages":
        *_, name, data = text.strip().split("\n")
        assert name == "event: error"
        error = json.loads(data.removeprefix("data: "))
        assert error["type"] == "error" and error["error"]["type"] == "overloaded_error"
        assert "stopping" in error["error"]["message"]
    else:
        assert "stopping" in json.loads(text.splitlines()[-1])["error"]


def test_the_clients_raise_what_a_stream_says(thinker: Any, stop: Callable[[], None]) -> None:
    with anthropic.Anthropic(base_url=thinker.url, api_key="none", max_retries=0) as client:
        stream = client.messages.create(
            model="thinker",
            max_tokens=1900,
            messages=STORY,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        stop()
        with pytest.raises(anthropic.APIStatusError, match="stopping"):
            for _ in stream:
                pass


def test_p25_what_a_template_refuses_is_a_400_with_its_words(serve: Any, tiny_gguf: Any) -> None:
    template = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate') }}{% endif %}{{ m.content }}"
        "{% endfor %}"
    )
    path = str(tiny_gguf(weights="Q4_K"))
    live = serve(models={"tiny": path}, engine={"chat_template": template})
    user = {"role": "user", "content": "x"}
    mixed = [{"role": "assistant", "content": "x"}, user]
    with ollama.Client(host=live.url) as client:
        for messages in ([user, user], mixed):
            with pytest.raises(ollama.ResponseError, match="roles must alternate") as caught:
                client.chat(model="tiny", messages=messages)
            assert caught.value.status_code == 400
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0) as client:
        with pytest.raises(anthropic.BadRequestError, match="roles must alternate"):
            client.messages.create(model="tiny", max_tokens=1, messages=mixed)
        # Neighbours of one role are one turn in Anthropic's API.
        client.messages.create(model="tiny", max_tokens=1, messages=[user, user])


def test_a_base_model_continues_the_prompt(serve: Any, tiny_gguf: Any) -> None:
    """Ollama's generate needs no template; chat, and Anthropic's messages, do (PAINS P29)."""
    path = tiny_gguf(weights="Q4_K", metadata={"tokenizer.chat_template": None})
    live = serve(models={"base": str(path)})
    with ollama.Client(host=live.url) as client:
        options = {"num_predict": 2}
        raw = client.generate(model="base", prompt="Once upon", raw=True, options=options)
        plain = client.generate(model="base", prompt="Once upon", options=options)
        assert plain.prompt_eval_count == raw.prompt_eval_count
        assert "tools" not in client.show("base").capabilities
        with pytest.raises(ollama.ResponseError) as caught:
            client.chat(model="base", messages=STORY, options=options)
        assert caught.value.status_code == 400
    body = {"model": "base", "max_tokens": 2, "messages": STORY}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        reply = live.post(path, body)
        assert reply.status_code == 400 and "template" in reply.json()["error"]["message"]
