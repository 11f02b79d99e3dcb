"""POST /v1/chat/completions over a real server: whole answers, read with openai's own types."""

from typing import Any

import pytest

openai = pytest.importorskip("openai")

from openai.types.chat import ChatCompletion  # noqa: E402

pytestmark = [pytest.mark.model("smollm2"), pytest.mark.kernels]
HI = [{"role": "user", "content": "Say hi."}]
PATH = "/v1/chat/completions"


def ask(live: Any, **fields: Any) -> Any:
    """The answer, and its parsed form."""
    body = {"model": live.model, "messages": HI, "max_tokens": 6, "temperature": 0, **fields}
    reply = live.post(PATH, body)
    assert reply.status_code == 200, reply.text
    return ChatCompletion.model_validate_json(reply.content, strict=True)


def refused(live: Any, body: Any, status: int = 400) -> dict[str, Any]:
    """The error's fields."""
    reply = live.post(PATH, body)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and error["type"]
    return error


def test_p55_a_whole_answer(live: Any) -> None:
    answer = ask(live, stop=["\n"])
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.model == "smollm2" and answer.system_fingerprint.startswith("llamba-")
    [choice] = answer.choices
    assert choice.finish_reason in ("stop", "length") and choice.index == 0
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.message.refusal is None and choice.message.tool_calls is None
    assert choice.message.annotations == [] and choice.logprobs is None
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 1 <= usage.completion_tokens <= 6
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert usage.completion_tokens_details.reasoning_tokens == 0
    timings = answer.model_extra["timings"]
    assert timings["predicted_n"] == usage.completion_tokens
    assert timings["cache_n"] + timings["prompt_n"] == usage.prompt_tokens
    assert "service_tier" not in answer.model_fields_set


def test_paths_and_names(live: Any) -> None:
    body = {"messages": HI, "max_tokens": 1}
    for path in (PATH, "/chat/completions"):
        for model in ({}, {"model": "smollm2"}, {"model": "gpt-4o"}):
            reply = live.post(path, {**body, **model}).json()
            assert reply["model"] == model.get("model", "smollm2")
    error = refused(live, {**body, "model": "nothing"}, 404)
    assert error["code"] == "model_not_found"


def test_p35_exactly_so_many_tokens(live: Any) -> None:
    for count in (0, 1, 2):
        answer = ask(live, max_tokens=count, ignore_eos=True)
        assert answer.usage.completion_tokens == count
        assert answer.choices[0].finish_reason == "length"
        assert bool(answer.choices[0].message.content) == bool(count)


def test_p37_no_limit_ends_with_the_context(tiny_live: Any) -> None:
    reply = tiny_live.post(
        "/v1/completions", {"prompt": [5, 6, 7], "ignore_eos": True, "logit_bias": {"2": -100}}
    )
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == tiny_live.llm.context_length
    assert tiny_live.get("/health").status_code == 200


@pytest.mark.drawn_seeds
def test_p38_seeds(live: Any) -> None:
    def draw(**fields: Any) -> Any:
        # The cache is left out of it: with it the last bits of logits may differ.
        fields = {"temperature": 1.5, "max_tokens": 12, "cache_prompt": False, **fields}
        [choice] = ask(live, **fields).choices
        return choice.message.content, choice.model_extra["seed"]

    first, seed = draw(seed=42)
    assert seed == 42 and draw(seed=42) == (first, 42)
    assert draw(seed=43)[0] != first
    text, drawn = draw(seed=-1)
    assert drawn >= 0 and draw(seed=drawn)[0] == text


def test_p40_logit_bias(live: Any) -> None:
    first = ask(live, max_tokens=1, logprobs=True).choices[0].logprobs.content[0]
    ids = live.post("/tokenize", {"content": first.token}).json()["tokens"]
    for bias in ({str(ids[0]): -100}, [[ids[0], -100]], [[ids[0], False]], {str(ids[0]): False}):
        answer = ask(live, max_tokens=1, logit_bias=bias)
        assert answer.choices[0].message.content != first.token
    chosen = live.post("/tokenize", {"content": " blue"}).json()["tokens"]
    assert ask(live, max_tokens=1, logit_bias={str(chosen[0]): 100}).choices[0].message.content
    for wrong in ({"99999999": 1}, {"abc": 1}, {"5": 101}, [[5, "x"]]):
        error = refused(live, {"messages": HI, "logit_bias": wrong})
        assert error["param"] == "logit_bias"


def test_p42_too_long_prompts_are_refused_with_numbers(live: Any) -> None:
    long = [{"role": "user", "content": "word " * 3000}]
    error = refused(live, {"messages": long})
    assert error["code"] == "context_length_exceeded" and error["param"] == "messages"
    assert "2048" in error["message"] and any(
        3000 <= int(n) < 3100 for n in error["message"].replace(",", "").split() if n.isdigit()
    )


def test_p42_a_full_context_ends_the_answer(tiny_live: Any) -> None:
    prompt = [5] * (tiny_live.llm.context_length - 3)
    reply = tiny_live.post(
        "/v1/completions", {"prompt": prompt, "max_tokens": 10, "ignore_eos": True}
    ).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert 1 <= reply["usage"]["completion_tokens"] <= 3


def test_p45_what_cannot_be_enforced_is_refused(live: Any) -> None:
    for fields in (
        {"guided_regex": "a("},
        {"structured_outputs": {"regex": "(?=a)b"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nil"}}}},
        {"json_schema": {"$ref": "https://example.com/schema.json"}},
    ):
        error = refused(live, {"messages": HI, "max_tokens": 2, **fields})
        assert error["code"] in ("unsupported_constraint", "invalid_value"), error


def test_p46_a_bad_grammar_harms_nobody(live: Any) -> None:
    for grammar in (
        'root := "a"',
        'root ::= ("a"',
        "root ::= " + "(" * 60000 + '"a"' + ")" * 60000,  # P47
    ):
        error = refused(live, {"messages": HI, "max_tokens": 2, "grammar": grammar})
        assert error["code"] == "unsupported_constraint" and error["param"] == "grammar"
    assert ask(live).choices[0].message.content  # the next request works


def test_forms_of_answers(live: Any) -> None:
    import json
    import re

    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    named = {"name": "x", "schema": schema, "strict": True}
    for fields in (
        {"response_format": {"type": "json_schema", "json_schema": named}},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"json_schema": schema},
        {"guided_json": schema},
    ):
        text = ask(live, max_tokens=30, **fields).choices[0].message.content
        assert isinstance(json.loads(text)["ok"], bool)
    assert ask(live, guided_choice=["red", "blue"]).choices[0].message.content in ("red", "blue")
    text = ask(live, structured_outputs={"regex": "[0-9]{3}"}).choices[0].message.content
    assert re.fullmatch("[0-9]{3}", text)
    assert ask(live, grammar='root ::= "yes" | "no"').choices[0].message.content in ("yes", "no")


def test_p57_wrong_bodies(live: Any) -> None:
    for messages in ([], {}, None, "hi", [None], [{"role": "user"}], {"messages": HI}):
        error = refused(live, {"model": "smollm2", "messages": messages})
        assert error["param"].startswith("messages")
    assert refused(live, {"model": "smollm2"})["param"] == "messages"
    for content in (b"", b"{", b"[]", b'"x"', b"\xff"):
        headers = {"content-type": "application/json"}
        with live.client() as client:
            reply = client.post(PATH, content=content, headers=headers)
        assert reply.status_code == 400 and reply.json()["error"]["message"]


def test_p44_no_number_of_a_body_does_harm(live: Any) -> None:
    with live.client() as client:
        for name in ("temperature", "top_k", "max_tokens", "n", "seed", "timeout"):
            for value in ("-2147483648", "9223372036854775808000", "NaN", "Infinity", '"1"'):
                if name == "seed" and value == "-2147483648":
                    continue
                content = f'{{"messages": [{{"role": "user", "content": "x"}}], "{name}": {value}}}'
                reply = client.post(
                    PATH, content=content, headers={"content-type": "application/json"}
                )
                assert reply.status_code == 400, (name, value, reply.text)
                assert reply.json()["error"]["param"] == name


def test_several_answers(live: Any) -> None:
    answer = ask(live, n=3, temperature=1.5, seed=5, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.model_extra["seed"] for choice in answer.choices] == [5, 6, 7]
    assert len({choice.message.content for choice in answer.choices}) > 1
    assert answer.usage.completion_tokens <= 12


def test_logprobs(live: Any) -> None:
    [choice] = ask(live, logprobs=True, top_logprobs=2).choices
    entries = choice.logprobs.content
    assert choice.logprobs.refusal is None
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text == choice.message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 2 and entry.logprob <= 0
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
        assert entry.top_logprobs[0].token == entry.token  # temperature 0
    assert ask(live, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_stop_strings_are_told(live: Any) -> None:
    ask(live, max_tokens=8)  # into the cache, which may change a token
    text = ask(live, max_tokens=8).choices[0].message.content
    stop = text[2:4]
    [choice] = ask(live, max_tokens=8, stop=stop).choices
    assert choice.finish_reason == "stop" and choice.model_extra["stop_reason"] == stop
    assert choice.message.content == text[: text.index(stop)]


def test_time_limits_are_told(live: Any) -> None:
    reply = live.post(PATH, {"messages": HI, "ignore_eos": True, "timeout": 0.3})
    [choice] = reply.json()["choices"]
    assert choice["finish_reason"] == "length" and choice["timed_out"] is True


def test_private_prompts_share_no_cache(live: Any) -> None:
    messages = [{"role": "user", "content": "A long enough secret: " + "swordfish " * 40}]

    def cached(**fields: Any) -> int:
        usage = ask(live, messages=messages, max_tokens=1, **fields).usage
        return usage.prompt_tokens_details.cached_tokens

    cached(cache_prompt=False)
    system = cached()  # what the template begins with may be cached
    assert system < 40
    assert cached(cache_prompt=False) == 0
    assert cached() > 40


def test_ignored_fields_are_named(live: Any) -> None:
    body = {"messages": HI, "max_tokens": 1, "user": "me", "temprature": 1}
    assert live.post(PATH, body).headers["x-llamba-ignored"] == "temprature"
    message = {"role": "user", "content": "x", "mood": "good"}
    reply = live.post(PATH, {"messages": [message], "max_tokens": 1})
    assert reply.headers["x-llamba-ignored"] == "messages[].mood"


def test_p56_assistant_turns_without_content(live: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    as_object = {"id": "c2", "function": {"name": "f", "arguments": {"a": 1}}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    for turns in (
        [{"role": "assistant"}],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": ""}],
        [{"role": "assistant", "content": None, "reasoning_content": "Hm."}],
        [{"role": "assistant", "content": None, "tool_calls": [call]}, result],
        [{"role": "assistant", "tool_calls": [as_object]}, {**result, "tool_call_id": "c2"}],
    ):
        ask(live, messages=[*HI, *turns, *HI], max_tokens=1)


def test_openai_client(live: Any) -> None:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="smollm2",
            messages=HI,
            max_completion_tokens=4,
            extra_body={"min_p": 0.1, "ignore_eos": True},
        )
        assert answer.choices[0].message.content
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(model="smollm2", messages=[], max_tokens=4)
        assert error.value.param == "messages"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nothing", messages=HI)
