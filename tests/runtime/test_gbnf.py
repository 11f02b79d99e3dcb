"""GBNF: the whole notation, its errors with line numbers, exactly its language."""

import itertools
import random
import time
from types import ModuleType

import pytest

from llamba.errors import ConstraintError
from llamba.runtime.gbnf import gbnf_to_lark, read_gbnf
from llamba.runtime.gbnf_nodes import Chars, Choice, Grammar, Literal, Node, Ref, Sequence

pytest.importorskip("llguidance")

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: limited, so that a model can't go on with it for ever
ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
LANGUAGES: list[tuple[str, list[str], list[str]]] = [
    (JSON, ["{}", '{"a": 1}', '{"a":[1,2,{"b":null}], "c": "x\\n\\u00e9"}'],
     ["{", "[1]", '{"a" 1}', '{"a":1,}', '{"a":01}']),
    (ARITHMETIC, ["a=1\n", "(a+b)*c = 12\nx=y\n"], ["a", "=1\n"]),
    ('root ::= [a-z]+ "x"', ["abx", "xx", "xxx"], ["x", "ab"]),
    ('root ::= "a" "b" | "ab" "c"', ["ab", "abc"], ["a", "abcc"]),
    ('root ::= "(" root ")" | [a-z]+ "x" | ""', ["", "()", "((abx))"], ["(x)", "("]),
    ('root ::= ws "x"\nws ::= ([ \\t\\n] ws)?', ["x", "  \n x"], ["", "y"]),
    ('root ::= "if" | id "=" root\nid ::= [a-z]+', ["if", "if=if", "iff=if"], ["x", "x=y"]),
    (r'root ::= [^a] . [\]\[\x41\u00e9\U0001F600-\U0001F602-]',
     ["bzA", "b\n]", "xyé", "xy😁", "xy-"], ["azA", "bzB"]),
    ('root ::= "a"{2} "b"{1,} "c"{ 0 , 2 }', ["aab", "aabbbcc"], ["ab", "aabccc"]),
    ('root ::= # comment ::= x\r\n  "a" | # more\n  "b"\n', ["a", "b"], ["c"]),
    ('root ::= "a"\n | "b"\nx ::= root', ["a", "b"], ["c"]),
    ('root ::= "\\t\\"\\\\" [a-]', ['\t"\\-', '\t"\\a'], ["b"]),
    ('root ::= "" ', [""], ["a"]),
    ('root ::= root-1 root-1\nroot-1 ::= "a" | "<" root ">"', ["aa", "a<aa>"], ["a"]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(LANGUAGES)))
def test_languages(grammars: ModuleType, number: int) -> None:
    text, good, bad = LANGUAGES[number]
    grammar = grammars.compile_form(grammar=text)
    for each in good:
        assert grammars.accepts(grammar, each), each
    for each in bad:
        assert not grammars.accepts(grammar, each), each


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("root ::= x", "line 1: there is no rule 'x'"),
        ('start ::= "a"', "no rule 'root'"),
        ('root ::= "a"\nroot ::= "b"', "line 2: the rule 'root' is defined twice"),
        ('root ::= "a', "closing quote is missing"),
        ("root ::= [a", "closing bracket is missing"),
        ("root ::= []", "matches nothing"),
        ('root ::= "a"\n\n\nx ::= ("b"', r"line 4: '\)' is expected"),
        ('root ::= "a")', "end of the line"),
        (r'root ::= "\q"', r"unknown escape \\q"),
        (r'root ::= "\x4"', "unknown escape"),
        (r'root ::= "\ud800"', "unknown escape"),
        (r'root ::= "\U00110000"', "unknown escape"),
        ("root ::= [z-a]", "ends before it begins"),
        ('root ::= * "a"', "nothing before it"),
        ('root ::= "a"{2,1}', "smaller than the first"),
        ('root ::= "a"{x}', "a repetition is written"),
        ('root ::= <think> "a"', "token references"),
        ('::= "a"', "a rule's name"),
        ('root ::= root "a" | "b"', "left recursion"),
        ('root ::= x? y\nx ::= "b"\ny ::= root "c" | "d"', "left recursion"),
    ],
)
def test_errors_name_the_line(grammars: ModuleType, text: str, words: str) -> None:
    with pytest.raises(ConstraintError, match=words):
        grammars.compile_form(grammar=text)


def test_p46_a_wrong_sign_of_definition(grammars: ModuleType) -> None:
    with pytest.raises(ConstraintError, match="'::=' is expected"):
        grammars.compile_form(grammar='root :== "a"')
    assert grammars.accepts(grammars.compile_form(grammar='root ::= "a"'), "a")


def _doubling(count: int, last: str) -> str:
    rules = "".join(f"r{i} ::= r{i + 1}? r{i + 1}?\n" for i in range(count))
    return f"root ::= r0\n{rules}r{count} ::= {last}\n"


HOSTILE = {
    "nested": f'root ::= {"(" * 60_000}"a"{")" * 60_000}',
    "unclosed": f'root ::= {"(" * 60_000}"a"',
    "chain": "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(5000)),
    "left recursion": 'root ::= root | root "a" | "b"',
    "repeats": 'root ::= "a"{1,1000000000}',
    "nested repeats": 'root ::= ((("a"{1000}){1000}){1000}){1000}',
    "repeats by rules": 'root ::= x{10000}\nx ::= y{10000}\ny ::= "a"{10000}',
    "digits": f'root ::= "a"{{{"9" * 100_000}}}',
    "spaces": f'root ::= "a"{{1,{" " * 500_000}',
    "doubling of nothing": _doubling(60, '""'),
    "doubling of options": _doubling(40, '"a"?'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_p47_hostile_grammars(grammars: ModuleType, name: str) -> None:
    started = time.process_time()  # the compiler has a thread of its own
    with pytest.raises(ConstraintError):
        grammars.compile_form(grammar=HOSTILE[name])
    assert time.process_time() - started < 10  # without limits there is no end to some
    assert grammars.accepts(grammars.compile_form(grammar='root ::= "b"'), "b")


CROWDED = {
    "loops of many lengths": "root ::= "
    + " | ".join(f"s{i}" for i in range(50))
    + "".join(f'\ns{i} ::= "q" root | ({"[ab] " * (90 + i)})+ "{i}" root' for i in range(50)),
    "counts in recursion": "root ::= r0\n"
    + "".join(f'r{i} ::= ("x" r{i}){{1000}} | "y"\n' for i in range(1990)),
    "empty at the end of a chain": 'root ::= "a"\n'
    + "".join(f'r{i} ::= r{i + 1} | "a"{" | [ab]" * 10}\n' for i in range(1500))
    + 'r1500 ::= ""',
}


@pytest.mark.parametrize("name", CROWDED)
def test_p47_what_is_looked_at_is_limited(name: str) -> None:
    started = time.thread_time()
    assert gbnf_to_lark(CROWDED[name])
    assert time.thread_time() - started < 20  # without limits it is a minute, or more


def test_llama_cpps_own_json_grammar_is_read_in_lexemes() -> None:
    """Character by character, masks of large vocabularies would take too long."""
    lark = gbnf_to_lark(JSON)
    assert len(lark.splitlines()) < 30 and "T" in lark


def language(grammar: Grammar, longest: int) -> set[str]:
    """All texts over a, b, c of at most this length, by definition."""
    found: dict[str, set[str]] = {name: set() for name in grammar.rules}

    def texts(node: Node) -> set[str]:
        if isinstance(node, Literal):
            return {node.text} if len(node.text) <= longest else set()
        if isinstance(node, Chars):
            return {c for c in "abc" if any(a <= ord(c) <= b for a, b in node.ranges)}
        if isinstance(node, Ref):
            return found[node.name]
        if isinstance(node, Choice):
            return set().union(*map(texts, node.items))
        if isinstance(node, Sequence):
            made = {""}
            for item in node.items:
                made = joined(made, texts(item))
            return made
        part, made, total = texts(node.item), {""}, set[str]()
        for count in range(node.least + longest + 1 if node.most is None else node.most + 1):
            if count >= node.least:
                total |= made
            made = joined(made, part)
        return total

    def joined(left: set[str], right: set[str]) -> set[str]:
        return {x + y for x in left for y in right if len(x + y) <= longest}

    while True:
        new = {name: texts(node) for name, node in grammar.rules.items()}
        if new == found:
            return found["root"]
        found.update(new)


def draw(rng: random.Random, depth: int, names: list[str]) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return rng.choice(['"a"', '"b"', '"ab"', "[ab]", "[^a]", '"aba"', '""'])
    if kind < 0.5:
        return rng.choice(names)
    parts = [draw(rng, depth - 1, names) for _ in range(2)]
    if kind < 0.7:
        return f"({' | '.join(parts)})"
    if kind < 0.85:
        return " ".join(parts)
    return f"({parts[0]}){rng.choice(['*', '+', '?', '{2}', '{1,2}', '{0,2}'])}"


@pytest.mark.parametrize("seed", range(4))
def test_the_language_is_exactly_the_same(grammars: ModuleType, seed: int) -> None:
    """Random grammars: every text of up to four letters is allowed if and only if it should be."""
    rng = random.Random(seed)
    words = ["".join(w) for n in range(5) for w in itertools.product("abc", repeat=n)]
    checked = 0
    while checked < 40:
        names = ["root", "x", "y"][: rng.randint(1, 3)]
        text = "\n".join(
            f"{name} ::= {draw(rng, 3, names)} | {draw(rng, 2, names)}" for name in names
        )
        try:
            wanted = language(read_gbnf(text), 4)
            grammar = grammars.compile_form(grammar=text)
        except ConstraintError:
            continue
        checked += 1
        assert {w for w in words if grammars.accepts(grammar, w)} == wanted, text
