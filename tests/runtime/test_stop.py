"""Stop strings: as if the text came character by character, no part of one shown (PAINS P32)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from llamba.runtime.stop import StopStrings

patient = settings(deadline=None)  # the machine may be busy
texts = st.text("abc", max_size=30)
stops_of = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3)


def one_by_one(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The meaning, without any cleverness: all text before the stop string that ends first."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@patient
@given(pieces=st.lists(texts, max_size=8), stops=stops_of)
def test_equals_the_plain_search(pieces: list[str], stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
    shown += matcher.flush()
    assert (shown, matcher.matched) == one_by_one("".join(pieces), stops)


@patient
@given(text=texts, stops=stops_of)
def test_holds_back_only_proper_prefixes(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown = matcher.push(text)
    if matcher.matched is None:
        held = text[len(shown) :]
        assert held == "" or any(s.startswith(held) and s != held for s in stops)
        rest = [text[i:] for i in range(len(shown))]
        assert not any(s.startswith(r) for s in stops for r in rest if r)


def test_reported_case() -> None:
    """vLLM's issue: the stop string came in four tokens."""
    matcher = StopStrings(["DEFGHIJ"])
    assert [matcher.push(p) for p in ("ABC", "DEF", "G", "HI", "J", "K")] == ["ABC", *[""] * 5]
    assert matcher.matched == "DEFGHIJ" and matcher.flush() == ""
    matcher = StopStrings(["\nUser:"])
    assert matcher.push("hi\nUs") + matcher.push("ed\n") + matcher.flush() == "hi\nUsed\n"
