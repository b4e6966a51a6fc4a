"""What every answer over HTTP has in common: CORS, and errors as JSON in OpenAI's shape."""

from __future__ import annotations

from aiohttp import web

from .errors import RequestError

_COMMON = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "Location, ETag, Link, Retry-After, Server-Timing",
    "Server": "voice-relay",
}
_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    413: "offer_too_large",
    431: "headers_too_large",
}


def add_common_headers(response: web.StreamResponse) -> None:
    """Makes a response readable by a page of any origin. Connection does it to all that it sends."""
    response.headers.update(_COMMON)


def error_response(error: RequestError) -> web.Response:
    """An error as the client gets it."""
    response = web.json_response(error.body(), status=error.status)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def error_of_status(status: int, message: str) -> RequestError:
    """What the HTTP library refused by itself."""
    return RequestError(status, _CODES.get(status, "invalid_request"), message)


def http_error_response(
    error: web.HTTPException, request: web.Request | None = None
) -> web.Response:
    """An error that the HTTP library raised."""
    message = error.reason or "The request is not valid."
    if request is not None and error.status in (404, 405):
        message = f"{message}: {request.method[:20]} {request.path[:200]}"
    response = error_response(error_of_status(error.status, message))
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
