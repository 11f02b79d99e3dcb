"""`llamba tokenize`: the tokens of a text."""

from typing import TYPE_CHECKING

import click

from . import loading
from .console import print_json, print_table
from .prompt import clean, read_stdin

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer


@click.command("tokenize")
@click.argument("model", metavar="MODEL")
@click.argument("text", nargs=-1, metavar="TEXT")
@click.option("--special/--no-special", default=True, help="Add BOS and EOS as the model asks.")
@click.option("--parse-special", is_flag=True, help="Read control tokens such as <|im_end|>.")
@click.option("--json", "as_json", is_flag=True, help="The ids as a JSON list.")
@click.option("--pieces", is_flag=True, help="With --json: a list of {id, piece}.")
@click.option("--count", is_flag=True, help="Only how many there are.")
def command(
    model: str,
    text: tuple[str, ...],
    special: bool,
    parse_special: bool,
    as_json: bool,
    pieces: bool,
    count: bool,
) -> None:
    """Show the tokens of TEXT (of stdin without TEXT, or with -)."""
    tokenizer = loading.open_tokenizer(model)
    whole = read_stdin() if text in ((), ("-",)) else clean(" ".join(text))
    ids = tokenizer.encode(whole, add_special=special, parse_special=parse_special)
    if count:
        print_json({"count": len(ids)}) if as_json else click.echo(len(ids))
    elif as_json and pieces:
        print_json([{"id": i, "piece": _piece(tokenizer, i)} for i in ids])
    elif as_json:
        print_json(ids)
    else:
        rows = [(str(i), repr(_piece(tokenizer, i))) for i in ids]
        print_table(("ID", "PIECE"), rows, right="r")


def _piece(tokenizer: "Tokenizer", token_id: int) -> str:
    """The text that a token stands for; of control tokens their name, of half characters <XX>."""
    data = tokenizer.token_bytes(token_id)
    if not data:
        return tokenizer.token_text(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in data)
