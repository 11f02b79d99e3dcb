"""`llamba chat`: the conversation, its /commands, piped input, and the real terminal loop."""

import json
import os
from typing import Any

import pytest

from llamba.cli.chat import entries
from llamba.cli.conversation import Conversation
from llamba.cli.session import Session
from llamba.cli.settings import change, show
from llamba.errors import ContextLengthError, InvalidParameterError, RequestError
from llamba.runtime.request import SamplingParams

posix = pytest.mark.skipif(os.name == "nt", reason="needs a POSIX terminal")
SYSTEM = {"role": "system", "content": "Be brief."}


def user(text) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def session(llm) -> Session:
    return Session(llm, "smollm2", SamplingParams())


def say(session, *lines) -> list[bool]:
    return [session.handle(line) for line in lines]


def test_turns_are_kept(session, llm, capsys) -> None:
    llm.says = ["one", "two"]
    say(session, "first", "second")
    assert llm.messages == [user("first"), assistant("one"), user("second")]
    assert capsys.readouterr().out == "one\ntwo\n"
    assert session.conversation.turns[-1] == assistant("two")


def test_regen_undo_clear(session, llm) -> None:
    llm.says = ["one", "two", "three", "four"]
    say(session, "first", "second", "/regen")
    assert llm.messages == [user("first"), assistant("one"), user("second")]
    assert session.conversation.turns[-1] == assistant("three")
    say(session, "/undo")
    assert session.conversation.turns == [user("first"), assistant("one")]
    say(session, "/system Be brief.", "/clear", "again")
    assert llm.messages == [SYSTEM, user("again")]


def test_undo_and_regen_on_nothing(session, capsys) -> None:
    say(session, "/undo", "/regen")
    assert "nothing" in capsys.readouterr().err


def test_regen_with_a_seed_is_another_answer(session, llm) -> None:
    say(session, "/set seed 5", "first", "/regen", "/regen")
    assert [call[2].seed for call in llm.calls] == [5, 6, 7]


def test_system(session, llm, capsys) -> None:
    say(session, "/system Be brief.", "Hi")
    assert llm.messages == [SYSTEM, user("Hi")]
    say(session, "/system", "/system none", "/system")
    err = capsys.readouterr().err
    assert "Be brief." in err and "none" in err
    assert session.conversation.system is None


def test_set(session, capsys) -> None:
    say(session, "/set temp 0.2", "/set top-k=7", '/set stop "a b" \\n', "/set seed 3")
    assert session.params == SamplingParams(temperature=0.2, top_k=7, stop=["a b", "\n"], seed=3)
    say(session, "/set seed none", "/set temperature default")
    assert session.params == SamplingParams(top_k=7, stop=["a b", "\n"])
    capsys.readouterr()
    say(session, "/set")
    assert "top_k" in capsys.readouterr().err
    say(session, "/set tempreature 1", "/set top_p 7", "/set top_p", "/set top_k x")
    err = capsys.readouterr().err
    assert "did you mean temperature" in err and "top_p" in err and "'x'" in err
    assert session.params.top_p == 0.95


def test_every_parameter_can_be_shown_and_set() -> None:
    params = SamplingParams()
    for line in show(params):
        name = line.split()[0]
        value = {"stop": "x", "stop_token_ids": "1", "dry_sequence_breakers": "x"}.get(name)
        value = value or {"logit_bias": "5+1", "ignore_eos": "on"}.get(name)
        value = value or {"skip_special_tokens": "off"}.get(name, "1")
        changed = change(params, f"{name} {value}")
        assert change(changed, f"{name} default") == params
    with pytest.raises(InvalidParameterError):
        change(params, "ignore_eos perhaps")


def test_save_and_load(session, llm, tmp_path, capsys) -> None:
    path = tmp_path / "talk.json"
    llm.says = ["one", "two"]
    say(session, "/system Be brief.", "first", f"/save {path}", "/clear", "/system none")
    say(session, f"/load {path}", "second")
    assert llm.messages == [SYSTEM, user("first"), assistant("one"), user("second")]
    assert json.loads(path.read_text(encoding="utf-8"))["model"] == "smollm2"
    say(session, "/save", f"/save {tmp_path}/no/such", f"/load {tmp_path}/none")
    err = capsys.readouterr().err
    assert "can't save" in err and "can't load" in err


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", '[{"role":"user"}]', '{"messages": 3}', '[{"role":"x","content":""}]'],
)
def test_load_refuses_other_files_and_keeps_the_conversation(tmp_path, text) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    conversation = Conversation("s", [user("kept")])
    with pytest.raises(RequestError, match="x.json"):
        conversation.load(path)
    assert conversation == Conversation("s", [user("kept")])


def test_help_stats_multiline_exit(session, capsys) -> None:
    assert say(session, "/help", "/stats", "Hi", "/stats", "/multiline", "/exit")[-1] is False
    err = capsys.readouterr().err
    assert "/regen" in err and "nothing was answered yet" in err
    assert "tok/s" in err and "of 64 tokens used" in err
    assert session.multiline


def test_unknown_commands_do_not_go_to_the_model(session, llm, capsys) -> None:
    assert say(session, "/foo", "/sytem Be brief.") == [True, True]
    assert not llm.calls and not session.conversation.turns and not session.failed
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2 and "/foo" in err[0] and "/sytem" in err[1] and "/undo" in err[0]
    say(session, "//foo is what?", "/foo\nand more")
    assert llm.messages == [user("/foo is what?"), assistant(llm.says[0]), user("/foo\nand more")]


def test_slash_texts_that_are_no_commands_go_to_the_model(session, llm) -> None:
    say(session, "/usr/bin/env is what?")
    assert llm.messages == [user("/usr/bin/env is what?")]


def test_full_context_says_what_to_do_and_keeps_the_conversation(session, llm, capsys) -> None:
    llm.says = ["one", ContextLengthError("70 tokens, the context holds 64")]
    assert say(session, "first", "second") == [True, True]
    err = capsys.readouterr().err
    assert "70 tokens" in err and "/clear" in err and "/undo" in err and "-c" in err
    assert session.conversation.turns == [user("first"), assistant("one")]


def test_context_full_while_answering(session, llm, capsys) -> None:
    llm.context_length, llm.finish_reason = 3, "length"
    say(session, "Hi")
    assert "the context is full" in capsys.readouterr().err


def test_errors_never_end_the_session(session, llm, capsys) -> None:
    llm.says = [RuntimeError("boom"), "fine"]
    assert say(session, "first", "second") == [True, True]
    assert "boom" in capsys.readouterr().err
    assert session.conversation.turns == [user("second"), assistant("fine")]


def test_failed_regen_keeps_the_old_answer(session, llm) -> None:
    llm.says = ["one", RuntimeError("boom")]
    say(session, "first", "/regen")
    assert session.conversation.turns == [user("first"), assistant("one")]


@posix
def test_ctrl_c_keeps_the_partial_answer(session, llm, capsys) -> None:
    llm.interrupt_after = 2
    say(session, "first")
    assert session.conversation.turns == [user("first"), assistant("Because of Rayleigh ")]
    assert "[stopped]" in capsys.readouterr().err


@posix
def test_ctrl_c_before_the_first_word_takes_the_question_back(session, llm) -> None:
    llm.interrupt_after = 0
    say(session, "first")
    assert session.conversation.turns == []


def test_empty_stdin_exits_0_without_a_model(invoke, llm) -> None:
    result = invoke("chat", input="")
    assert (result.exit_code, result.output) == (0, "")
    assert not llm.opened


def test_piped_stdin_is_one_prompt(invoke, llm) -> None:
    result = invoke("chat", "smollm2", input="first line\nsecond line\n")
    assert (result.exit_code, result.stdout) == (0, "Because of Rayleigh scattering.\n")
    assert llm.messages == [user("first line\nsecond line")]
    assert llm.closed


def test_piped_commands_are_carried_out(invoke, llm) -> None:
    invoke("chat", input="/system Be brief.\nfirst\nline\n/regen\nmore\n/exit\nnever\n")
    assert len(llm.calls) == 3
    assert llm.messages[0] == SYSTEM
    assert llm.messages[-1] == user("more")
    assert entries("a\n\n/usr b\n/set\n") == ["a\n\n/usr b", "/set"]


def test_piped_errors_have_an_exit_code(invoke, llm) -> None:
    llm.says = [RuntimeError("boom")]
    assert invoke("chat", input="Hi").exit_code == 1


def test_a_model_without_a_template_is_refused(invoke, llm) -> None:  # PAINS P29
    llm.chat_template = None
    result = invoke("chat", "smollm2", input="Hi")
    assert result.exit_code == 2
    assert "no chat template" in result.stderr and "llamba run" in result.stderr


def launch(says="['one', 'two', 'three']", args=(), **fields) -> Any:
    from terminal import Terminal

    more = "".join(f", {name}={value!r}" for name, value in fields.items())
    return Terminal(
        "import sys, conftest\nfrom llamba.cli import loading; from llamba.cli.main import main\n"
        f"loading.open_llm = lambda *_: conftest.FakeLLM(says={says}{more})\n"
        f"sys.argv = ['llamba', 'chat', *{list(args)!r}]; main()"
    )


@pytest.fixture
def beside(monkeypatch) -> None:
    """terminal.py is found beside this file."""
    monkeypatch.syspath_prepend(os.path.dirname(__file__))


@posix
def test_terminal_conversation(beside, tmp_path) -> None:
    with launch() as t:
        t.expect(">>> ")
        t.send("Hello")
        t.expect("one")
        t.expect(">>> ")
        t.send("", "ctrl-c")
        t.expect("Ctrl-D")  # the hint
        t.expect(">>> ")
        t.send("half a line", "ctrl-c")
        t.send("/stats")
        t.expect("tok/s")
        t.expect(">>> ")
        t.send("", "ctrl-d")
        assert t.wait() == 0
        assert "Aborted" not in t.text and "Traceback" not in t.text
    with launch() as t:  # the history is there in the next session
        t.expect(">>> ")
        t.send("", "up")
        t.expect("/stats")
        t.send("", "ctrl-c")
        t.expect(">>> ")
        t.send("/exit")
        assert t.wait() == 0


@posix
@pytest.mark.parametrize(
    "keys",
    [
        [("first", "alt-enter"), ("second", "enter")],
        [("first\\", "enter"), ("second", "enter")],
        [('"""first', "enter"), ('second"""', "enter")],
        [("/multiline", "enter"), ("first", "enter"), ("second", "alt-enter")],
    ],
)
def test_terminal_several_lines(beside, tmp_path, keys) -> None:
    with launch() as t:
        t.expect(">>> ")
        for text, key in keys:
            t.send(text, key)
            if text == "/multiline":  # between two prompts the terminal makes \n of Alt-Enter's \r
                t.expect("Alt-Enter sends")
                t.expect(">>> ")
        t.expect("one")
        t.expect(">>> ")
        t.send(f"/save {tmp_path}/talk.json", "enter")
        t.expect("saved 2 messages")
        t.expect(">>> ")
        t.send("", "ctrl-d")
        assert t.wait() == 0
    saved = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    assert saved["messages"][0] == user("first\nsecond")


@posix
@pytest.mark.parametrize("args", [[], ["--plain"]])
def test_terminal_ctrl_c_while_answering(beside, tmp_path, args) -> None:
    words = " ".join(f"w{i}" for i in range(4000))  # no answer that ends before the key comes
    with launch(says=repr([words, "after"]), args=args, pause_s=0.05) as t:
        t.expect(">>> ")
        t.send("Hello")
        t.expect("w5")
        t.send("", "ctrl-c")
        t.expect("[stopped]")
        t.expect(">>> ")
        t.send("next")
        t.expect("after")
        t.expect(">>> ")
        t.send(f"/save {tmp_path}/talk.json")
        t.expect("saved 4 messages")
        t.expect(">>> ")
        t.send("", "ctrl-d")
        assert t.wait() == 0
    saved = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    assert saved["messages"][1]["content"].startswith("w0 w1 ")


@posix
def test_terminal_markdown(beside) -> None:
    says = ["# Title\n\nSome **bold** text and <b>html</b>.\n\n```python\nx = 1\n```\n\nEnd."]
    with launch(says=repr(says), pause_s=0.02) as t:
        t.expect(">>> ")
        t.send("Hello")
        t.expect("End.")
        t.expect(">>> ")
        t.send("", "ctrl-d")
        assert t.wait() == 0
    assert "**" not in t.text and "```" not in t.text
    assert "<b>html</b>" in t.text
