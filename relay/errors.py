"""What the relay's own code raises.

1. Every error carries one line that an operator can act on, and the exit status it ends with.
2. Nothing a peer sends becomes an exception.
"""


class RelayError(Exception):
    """The relay cannot go on; its text is one line for the operator."""

    exit_status = 1


class ConfigError(RelayError):
    """An option that cannot work, found before anything was bound.

    Args:
        option: as it is written on the command line, such as "--listen".
        value: the offending value.
        reason: what is wrong with it.
    """

    exit_status = 2

    def __init__(self, option: str, value: object, reason: str) -> None:
        super().__init__(f"{option} {value}: {reason}")
        self.option = option
        self.value = value
        self.reason = reason


class BindError(RelayError):
    """An address that could not be bound; the text names address and port."""


class RunDirError(RelayError):
    """The run directory cannot be used, or another relay uses it."""


class StartError(RelayError):
    """The workers never came up."""


class HandoverError(RelayError):
    """A running relay cannot be taken over; it goes on as it was."""
