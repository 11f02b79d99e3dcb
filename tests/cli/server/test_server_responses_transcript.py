"""The responses API's output: items and events made of an answer's parts, read by the SDK."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's extra is not installed")
pytest.importorskip("openai", reason="the SDK's types are what replies must fit")

from openai.types import responses

from llamba.cli.server.answers import Delta, End, Summary
from llamba.cli.server.errors import ApiError
from llamba.cli.server.responses.items import to_messages
from llamba.cli.server.responses.transcript import Transcript
from llamba.models.chat import ContentText, Part, ReasoningText, ToolCallArguments, ToolCallStart

ECHO = {
    "model": "m",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "temperature": 1.0,
    "top_p": 1.0,
}
SUMMARY = Summary(7, 3, 5, 2, {"predicted_n": 5.0})


def make(*, encrypted: bool = False, logprobs: Any = None) -> Transcript:
    return Transcript(dict(ECHO), created=1_700_000_000, logprobs=logprobs, encrypted=encrypted)


def delta(*parts: Part) -> Delta:
    return Delta(0, parts, [1], None)


def play(
    transcript: Transcript, parts: Sequence[Part | Delta], reason: str = "stop"
) -> list[dict[str, Any]]:
    """All events, each as it was when it was sent, and fit for the SDK."""
    from pydantic import TypeAdapter

    reader = TypeAdapter(responses.ResponseStreamEvent)
    sent: list[dict[str, Any]] = []

    def send(events: Any) -> None:
        for event in events:
            text = json.dumps(event)
            assert reader.validate_json(text, strict=True).type == event["type"]
            sent.append(json.loads(text))

    send(transcript.begin())
    for part in parts:
        send(transcript.take(part if isinstance(part, Delta) else delta(part)))
    send(transcript.take(End(0, reason, None, 1)))
    if reason == "abort":
        error = ApiError(503, "the server is stopping", "server_error", "server_shutdown")
        send(transcript.fail(error))
    else:
        send(transcript.take(SUMMARY))
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    assert sent[-1]["response"] == json.loads(json.dumps(transcript.response))
    responses.Response.model_validate_json(json.dumps(transcript.response), strict=True)
    return sent


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_text() -> None:
    transcript = make()
    events = play(transcript, [ContentText("Hel"), ContentText("lo")])
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[0]["response"]["output"] == [] and events[0]["response"]["usage"] is None
    assert len({event["item_id"] for event in events if "item_id" in event}) == 1
    assert events[2]["item"]["id"] == events[8]["item"]["id"] == events[4]["item_id"]
    assert events[2]["item"]["content"] == [] and events[2]["item"]["status"] == "in_progress"
    final = responses.Response.model_validate(transcript.response)
    assert final.output_text == "Hello" and final.status == "completed"
    assert final.completed_at is not None and final.error is None
    assert final.usage is not None and transcript.response["seed"] == 1
    assert final.usage.input_tokens_details.cached_tokens == 3
    assert final.usage.output_tokens_details.reasoning_tokens == 2
    assert final.usage.total_tokens == 12


def test_reasoning_then_text_then_calls() -> None:
    transcript = make()
    events = play(
        transcript,
        [
            ReasoningText("Let me "),
            ReasoningText("see."),
            ContentText("I look."),
            ToolCallStart(0, "look"),
            ToolCallArguments(0, '{"a":'),
            ToolCallArguments(0, "1}"),
            ContentText("\n"),
            ToolCallStart(1, "now"),
        ],
        "tool_calls",
    )
    output = transcript.response["output"]
    assert [item["type"] for item in output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert output[0]["summary"] == [] and output[0]["encrypted_content"] is None
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Let me see."}]
    assert output[2]["arguments"] == '{"a":1}' and output[2]["status"] == "completed"
    assert output[3]["arguments"] == "{}", "no arguments are still JSON"
    assert output[2]["call_id"] != output[3]["call_id"]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added] == [0, 1, 2, 3]
    assert [event["item"]["id"] for event in added] == [event["item"]["id"] for event in done]
    assert [event["item"] for event in done] == output
    assert kinds(events)[3:7] == [
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
    ]


def test_deltas_add_up_to_what_is_done() -> None:
    parts = [ReasoningText("a"), ContentText("  "), ContentText("b"), ContentText("c")]
    events = play(make(), parts)
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    [done] = [e for e in events if e["type"] == "response.output_text.done"]
    assert text == done["text"] == "  bc"


@pytest.mark.parametrize("parts", [[], [ContentText("\n")], [ReasoningText("hm")]])
def test_there_is_a_message_though_nothing_was_said(parts: list[Part]) -> None:
    transcript = make()
    play(transcript, parts)
    assert transcript.response["output"][-1]["type"] == "message"
    assert responses.Response.model_validate(transcript.response).output_text.strip() == ""


def test_length_is_incomplete() -> None:
    transcript = make()
    events = play(transcript, [ToolCallStart(0, "f"), ToolCallArguments(0, '{"a')], "length")
    assert events[-1]["type"] == "response.incomplete"
    assert transcript.response["incomplete_details"] == {"reason": "max_output_tokens"}
    [call] = transcript.response["output"]
    assert (call["status"], call["arguments"]) == ("incomplete", '{"a')
    transcript = make()
    play(transcript, [ReasoningText("on and on")], "length")
    assert [item["type"] for item in transcript.response["output"]] == ["reasoning"]


def test_time_is_up() -> None:
    transcript = make()
    events = play(transcript, [ContentText("half")], "timeout")
    assert events[-1]["type"] == "response.failed"
    assert "time was up" in transcript.response["error"]["message"]
    assert transcript.response["output"][0]["content"][0]["text"] == "half"


def test_failure_after_the_headers() -> None:
    transcript = make()
    events = play(transcript, [ContentText("half")], "abort")
    assert kinds(events)[-2:] == ["error", "failed"]
    assert events[-2]["code"] == "server_shutdown"
    assert transcript.response["status"] == "failed"
    assert transcript.response["output"][0]["status"] == "incomplete"


def test_reasoning_survives_in_what_clients_send_back() -> None:
    transcript = make(encrypted=True)
    play(transcript, [ReasoningText("Ünïcode"), ContentText("x")])
    item = dict(transcript.response["output"][0])
    del item["content"]  # as clients do that trust encrypted_content
    [message] = to_messages([item], None)
    assert message["reasoning_content"] == "Ünïcode"


_BYTES = {1: b"r", 2: b"a", 3: b"b", 4: b"<call>", 7: b"</think>", 8: "🌍".encode()[:2]}
_BYTES |= {9: "🌍".encode()[2:], 10: b"\n\n", 11: b" a"}


def scores(delta: Delta) -> list[dict[str, Any]]:
    entry = {"logprob": -0.5, "top_logprobs": []}
    return [{"token": str(i), "bytes": list(_BYTES[i]), **entry} for i in delta.token_ids]


def test_logprobs_belong_to_the_text_only() -> None:
    transcript = make(logprobs=scores)
    events = play(
        transcript,
        [
            Delta(0, [ReasoningText("r")], [1], None),
            Delta(0, [], [7], None),  # the tag that ends the thinking
            Delta(0, [], [2], None),  # held back: the start of a character, say
            Delta(0, [ContentText("ab")], [3], None),
            Delta(0, [ToolCallStart(0, "f")], [4], None),
        ],
        "tool_calls",
    )
    [said] = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for entry in said["logprobs"]] == ["2", "3"]
    [part] = transcript.response["output"][1]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == ["2", "3"]


@pytest.mark.parametrize(
    ("text", "tokens", "kept"),
    [
        ("🌍", [8, 9, 8], [8, 9, 8]),  # the next one has begun
        ("ab", [7, 10, 2, 3, 8], [2, 3, 8]),
        ("a", [7, 11], [11]),  # a token of which some was white space
        ("ab", [2, 3], [2, 3]),
        ("\ufffd", [8], [8]),
    ],
)
def test_logprobs_do_not_depend_on_how_tokens_come_together(
    text: str, tokens: list[int], kept: list[int]
) -> None:
    transcript = make(logprobs=scores)
    play(transcript, [Delta(0, [ContentText(text)], tokens, None)], "length")
    [part] = transcript.response["output"][0]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == [str(i) for i in kept]


def test_logprobs_of_tokens_that_never_became_text() -> None:
    transcript = make(logprobs=scores)
    play(transcript, [Delta(0, [ContentText("a")], [2], None), Delta(0, [], [8], None)], "length")
    [part] = transcript.response["output"][0]["content"]
    assert part["text"] == "a" and [entry["token"] for entry in part["logprobs"]] == ["2", "8"]
