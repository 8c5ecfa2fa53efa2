"""The span that a compile belongs to, where the process traces itself."""

from __future__ import annotations

import sys


def current_traceparent() -> str:
    """OpenTelemetry's current span as a W3C "traceparent", or "" where there is none.

    Only looks where the program has loaded OpenTelemetry itself; the environment variable
    TRACEPARENT is read by the client library.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return ""
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"
