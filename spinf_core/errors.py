"""The errors that reach a caller.

`Rejected` is what a caller can mend; `SetupError` is what the person who runs spinf can mend. Everything else is a fault of
ours: it is logged whole and answered blandly.
"""

from __future__ import annotations

from typing import Any

INVALID_REQUEST = "invalid_request"

# code -> (HTTP status, type) of the public error envelope.
CODES: dict[str, tuple[int, str]] = {
    **dict.fromkeys(
        (
            "invalid_json",
            "invalid_field",
            "missing_value",
            "invalid_template",
            "unknown_placeholder",
            "too_many_combinations",
            "too_many_options",
            "duplicate_option",
            "option_too_long",
            "option_boundary",
            "duplicate_id",
            "unknown_query_id",
            "empty_queries",
            "template_too_long",
            "content_too_long",
            "too_many_prompts",
            "too_many_extractions",
            "unsupported_content",
            "invalid_media",
            "media_not_supported",
            "media_disabled",
            "extraction_disabled",
            "generation_disabled",
            "model_not_served",
            "scoring_required",
            "unknown_pack",
            "unknown_pack_version",
            "pack_not_available",
            "pack_conflict",
            "pack_media_not_supported",
            "reserved_group",
            "unknown_category",
        ),
        (400, INVALID_REQUEST),
    ),
    "invalid_token": (401, "authentication_error"),
    "not_found": (404, "not_found"),
    "method_not_allowed": (405, INVALID_REQUEST),
    "request_too_large": (413, INVALID_REQUEST),
    "body_too_large": (413, INVALID_REQUEST),
    "concurrency_limit": (429, "rate_limited"),
    "engine_error": (500, "api_error"),
    "warming_up": (503, "unavailable"),
    "model_unavailable": (503, "unavailable"),
    "draining": (503, "unavailable"),
}


class Rejected(Exception):
    """A request, or a part of one, that the caller can mend.

    Args:
        code: one of `CODES`.
        message: a sentence that names the thing and the mend.
        param: dotted path of the offending field, such as `scoring.queries.0.options.2`; None where no field is at fault.
        retry_after: seconds after which the same call may go through; None where it will not by waiting.
        status: 404 where the thing asked for by its path is not there; 408 where the body did not arrive; None: as in `CODES`.
    """

    def __init__(
        self,
        code: str,
        message: str,
        param: str | None = None,
        retry_after: int | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        usual, type_ = CODES[code]
        self.status = status or usual
        self.type = CODES["not_found"][1] if status == 404 else type_
        self.code = code
        self.message = message
        self.param = param

    def envelope(self, request_id: str | None = None) -> dict[str, Any]:
        """The public error body: `{"error": {type, code, message, param}, "request_id"}`."""
        error = {"type": self.type, "code": self.code, "message": self.message, "param": self.param}
        return {"error": error, "request_id": request_id}


class SetupError(Exception):
    """Something about the installation, the settings, a plugin or a checkpoint that stops spinf from running.

    The message names the thing and what to do; the command line prints it without a traceback.
    """
