"""What both command lines are made of: a command whose errors say where a wrong value came from, when it was
not the command line, and a range of numbers.

Options also come from variables and a TOML file (design 3.6); an error that names only the flag sends
the reader looking for something that he never wrote.
"""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from .files import is_world_readable, read_small_file

FILE_KEY = "relay.wire.sources.file"
"""In `context.meta`: the path of the file whose values are the context's `default_map`."""

_OPTION = re.compile(r"(--[a-z0-9-]+)[: ]")


def take_file(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """The callback of --config, which is eager: what the TOML file says becomes the default of the other options.

    Keys are their names with underscores. Values are texts and numbers; lists of them where an option may be repeated, for
    which a table such as `[limit]` stands as well (`name=value` each); true or false where it is a flag. A byte order mark
    is skipped. Raises click.UsageError.
    """
    if path is None:
        return
    try:
        context.default_map = _defaults(path, context.command)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        source = _suffix(context, parameter)
        raise click.UsageError(f"--config {path}: {reason}{source}") from None
    context.meta[FILE_KEY] = path


def _defaults(path: str, command: click.Command) -> dict[str, object]:
    """Raises OSError, or ValueError that says what is wrong with the file."""
    options = {
        parameter.name: parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.expose_value
    }
    values: dict[str, object] = {}
    for key, value in _read_toml(path).items():
        if key not in options:
            raise ValueError(f"there is no option `{key}`")
        is_switch = options[key].is_flag and isinstance(value, bool)
        values[key] = value if is_switch else _texts(key, value, options[key].multiple)
    return values


def _read_toml(path: str) -> dict[str, object]:
    """Raises OSError, or ValueError for whatever the library makes of nonsense: nesting and numbers without end, too."""
    try:
        return tomllib.loads(read_small_file(path).decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("not TOML: nested too deep") from None
    except ValueError as error:
        raise ValueError(f"not TOML: {error}") from None


def _texts(key: str, value: object, is_repeatable: bool) -> str | list[str]:
    if isinstance(value, dict):
        value = [f"{name}={_text(key, item)}" for name, item in value.items()]
    if isinstance(value, list):
        if not is_repeatable:
            raise ValueError(f"`{key}` takes one value, not a list")
        return [_text(key, item) for item in value]
    return [_text(key, value)] if is_repeatable else _text(key, value)


def _text(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"`{key}` is neither a text nor a number")
    if "\0" in str(value):
        raise ValueError(f"`{key}` has a NUL in it")
    return str(value)


def secrets_readable_by_all(
    context: click.Context, named: Mapping[str, str | None]
) -> Iterator[tuple[str, str]]:
    """Option and path of each file that has a secret and that every user of this machine may read: those `named` by
    option, and the configuration file when a URL in it holds a password.
    """
    files = dict(named)
    if any(_has_password(value) for value in (context.default_map or {}).values()):
        files["--config"] = context.meta[FILE_KEY]
    for option, path in files.items():
        if path is not None and is_world_readable(path):
            yield option, path


def _has_password(value: object) -> bool:
    if isinstance(value, list):
        return any(_has_password(item) for item in value)
    try:
        return isinstance(value, str) and bool(urlsplit(value).password)
    except ValueError:  # no URL
        return False


class Number(click.FloatRange):
    """A range of numbers; `nan`, which compares false with both ends, is none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See click.ParamType.convert."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class SourcedCommand(click.Command):
    """Adds `(from NAME)` to errors about options that were given by variable or file.

    Concerned are click's own, and every exception of the command whose text begins with an option.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click.Command.parse_args."""
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            suffix = _suffix(ctx, error.param) if error.param is not None else ""
            if not suffix:
                raise
            kind = type(error) if isinstance(error, click.MissingParameter) else click.BadParameter
            raise kind(error.message + suffix, ctx, error.param, error.param_hint) from None
        except Exception as error:
            _annotate(ctx, error)
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """See click.Command.invoke."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            _annotate(ctx, error)
            raise


def _annotate(ctx: click.Context, error: Exception) -> None:
    text = str(error)
    named = _OPTION.match(text)
    if named is None or len(error.args) != 1:
        return
    for parameter in ctx.command.params:
        if named[1] in parameter.opts:
            error.args = (text + _suffix(ctx, parameter),)


def _suffix(ctx: click.Context, parameter: click.Parameter) -> str:
    source = ctx.get_parameter_source(parameter.name) if parameter.name else None
    if source is ParameterSource.ENVIRONMENT:
        return f" (from {_variable(ctx, parameter)})"
    if source is ParameterSource.DEFAULT_MAP:
        return f" (from {ctx.meta.get(FILE_KEY, 'the configuration file')})"
    return ""


def _variable(ctx: click.Context, parameter: click.Parameter) -> str:
    if isinstance(parameter.envvar, str):
        return parameter.envvar
    return f"{ctx.auto_envvar_prefix}_{(parameter.name or '').upper()}"
