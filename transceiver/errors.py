"""Every error the transceiver raises on purpose.

1. What a peer sends over UDP raises nothing across a module boundary; it is counted.
2. What a client sends over HTTP ends as a RequestError, and that as JSON in OpenAI's shape.
3. What an operator gets wrong ends as a ConfigError, one line, exit status 2; a BindError with 1.
"""

from __future__ import annotations


class TransceiverError(Exception):
    """The root of this package's errors."""


class ConfigError(TransceiverError):
    """An option is wrong; the text is the one line the operator reads."""

    exit_status = 2


class BindError(ConfigError):
    """An address that this machine does not give us now."""

    exit_status = 1


class RequestError(TransceiverError):
    """A request that cannot be served.

    `status` is the HTTP status, `code` a stable word for programs, `param` the part of the
    request that is to blame, `retry_after_s` the value of a Retry-After header.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def type(self) -> str:
        """The `error.type` of OpenAI's API for this status."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, object]:
        """The JSON body, in the shape OpenAI's clients read."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "code": self.code,
                "param": self.param,
            }
        }


class OfferError(RequestError):
    """An offer that is malformed (400) or that asks for what is not served here (422)."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, code, message, param="sdp")
