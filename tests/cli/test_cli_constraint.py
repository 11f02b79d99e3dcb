"""`llamba run` with the form of the answer: llama.cpp's options, files, and what contradicts."""

import pytest

from llamba.runtime.structured import StructuredOutputs

SCHEMA = '{"type": "object"}'
GRAMMAR = 'root ::= "yes" | "no"'


def test_each_option_reaches_the_model(invoke, llm, tmp_path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "answer.gbnf"
    schema.write_text(SCHEMA)
    grammar.write_text(GRAMMAR)
    for arguments, form in (
        (("-j", SCHEMA), {"json": SCHEMA}),
        (("--json-schema", SCHEMA), {"json": SCHEMA}),
        (("-jf", str(schema)), {"json": SCHEMA}),
        (("--json-schema-file", str(schema)), {"json": SCHEMA}),
        (("--grammar", GRAMMAR), {"grammar": GRAMMAR}),
        (("--grammar-file", str(grammar)), {"grammar": GRAMMAR}),
        ((), None),
    ):
        result = invoke("run", "Hi", *arguments)
        assert result.exit_code == 0, result.stderr
        wanted = None if form is None else StructuredOutputs.of(form)
        assert llm.params.structured_outputs == wanted


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-j", "{"), "no valid JSON"),
        (("-j", "{}", "--grammar", GRAMMAR), "--json-schema and --grammar: give one of them"),
        (("--grammar", " "), "empty"),
        (("--grammar-file", "absent.gbnf"), "does not exist"),
    ],
)
def test_what_can_not_be(invoke, llm, arguments, words) -> None:
    result = invoke("run", "Hi", *arguments)
    assert result.exit_code == 2 and words in result.stderr


def test_a_file_that_is_no_text(invoke, llm, tmp_path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"\xff\xfe")
    result = invoke("run", "Hi", "-jf", str(path))
    assert result.exit_code == 2 and "--json-schema-file" in result.stderr
    assert "UTF-8" in result.stderr
