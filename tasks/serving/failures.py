"""Names what a client did wrong, in the form of OpenAI's errors."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from llm_core.printing import one_line


class ApiError(Exception):
    """An answer other than 200. The message names the value, the rule and the way out."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.body: dict[str, Any] = {
            "error": {"message": one_line(message), "type": kind, "param": param, "code": code}
        }


def invalid(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a request."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    # Branches of unions are named in the place as well; a client knows the fields only.
    place = [str(part) for part in first["loc"] if not str(part).startswith(_BRANCHES)]
    param = ".".join(place) or None
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"{param} is not a known parameter; leave it out", param)
    reason = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{param or 'the body'}: {reason}", param)


_BRANCHES = ("list[", "str", "function-", "constrained-", "literal[", "dict[", "none", "int")
