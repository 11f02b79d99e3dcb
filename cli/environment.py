"""Options of a command from environment variables: every spelling works, and no typo is ignored."""

import difflib
import os
from collections.abc import Iterable, Iterator

import click


class EnvironmentCommand(click.Command):
    """A command whose options may be given as PREFIX_NAME, under each name that they have.

    click itself takes the name of the Python parameter alone, and ignores all others: an API key
    that is ignored leaves a server open. So a variable with the prefix that is none of ours, or
    is empty, is an error.
    """

    prefix = "LLAMBA_SERVE_"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with the environment."""
        for param in self.params:
            if isinstance(param, click.Option):
                param.envvar = list(self._names(param))
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:  # the shell completes a word
            self._check(ctx)
        return rest

    def _names(self, param: click.Parameter) -> Iterator[str]:
        """--api-key, with the parameter's name api_keys: ..._API_KEY, ..._API_KEYS."""
        if isinstance(param, click.Option):
            spellings = [*param.opts, param.name or ""]
            names = (each.lstrip("-").replace("-", "_").upper() for each in spellings)
            yield from dict.fromkeys(self.prefix + name for name in names)
        elif isinstance(param.envvar, str):
            yield param.envvar

    def _check(self, ctx: click.Context) -> None:
        given = [name for name in sorted(os.environ) if name.startswith(self.prefix)]
        owners = {name: param for param in self.params for name in self._names(param)}
        seen: dict[int, str] = {}
        for name in given:
            if name not in owners:
                near = difflib.get_close_matches(name, _long(owners, self.prefix), n=1, cutoff=0)
                raise click.UsageError(f"{name}: no such variable; the nearest is {near[0]}", ctx)
            if not os.environ[name].strip():
                raise click.UsageError(f"{name} is empty: give it a value, or unset it", ctx)
            other = seen.setdefault(id(owners[name]), name)
            if other != name:
                raise click.UsageError(f"{other} and {name}: give one of them", ctx)


def _long(names: Iterable[str], prefix: str) -> list[str]:
    """Without those of -t and -np, which say nothing."""
    return sorted(name for name in names if len(name) > len(prefix) + 2)
