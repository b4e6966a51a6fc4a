"""Options of the command line that have a variable, too: RELAY_NAME for --name."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def option(name: str, text: str, **settings: Any) -> Callable[[_Command], _Command]:
    """An option that also has its environment variable."""
    variable = "RELAY_" + name.lstrip("-").replace("-", "_").upper()
    decorate: Callable[[_Command], _Command] = click.option(
        name, envvar=variable, show_envvar=True, help=text, **settings
    )
    return decorate


def log_options(level: str) -> Callable[[_Command], _Command]:
    """--log-level, by default `level`, and --log-format."""
    from relay.wire.log import LOG_FORMATS, LOG_LEVELS

    def decorate(command: _Command) -> _Command:
        formats, levels = click.Choice(LOG_FORMATS), click.Choice(LOG_LEVELS)
        for name, text, kind, default in (
            ("--log-format", "For people or for machines.", formats, "console"),
            ("--log-level", "The least that is logged.", levels, level),
        ):
            command = option(name, text, type=kind, default=default, show_default=True)(command)
        return command

    return decorate
