"""The group of commands that each program is: every error of it is one line on standard error."""

import sys
from typing import Any

import click

from .signals import forget_inherited
from .streams import fill_standard_streams, lost_output


class OneLineGroup(click.Group):
    """Its commands' result is the exit status; without a command it prints its help on standard error.

    `error` is the program's own exception: it has an `exit_status`, and its text is the line.
    """

    def __init__(self, *, error: type[Exception], **settings: Any) -> None:
        super().__init__(no_args_is_help=True, **settings)
        self._error = error

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run and exit: 2 for wrong input, 130 when interrupted, what the program's own error says, or what the command returned."""
        fill_standard_streams()
        forget_inherited()
        settings.update(prog_name=self.name, standalone_mode=False)
        try:
            result = super().main(*args, **settings)
        except click.exceptions.Exit as exit_request:
            sys.exit(exit_request.exit_code)
        except click.Abort:
            sys.exit(130)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            self._fail(error.format_message(), error.exit_code)
        except OSError as error:
            self._fail(lost_output(error), 1)
        except self._error as error:
            self._fail(str(error), getattr(error, "exit_status", 1))
        sys.exit(result or 0)

    def _fail(self, message: str, status: int) -> None:
        click.echo(f"{self.name}: {' '.join(message.split())}", err=True)
        sys.exit(status)
