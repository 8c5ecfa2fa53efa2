"""A compile belongs to the span that was current when it was asked for."""

import sys
import types

import pytest
import torch

from kiln_torch.tracing import current_traceparent

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
SPAN = 0x00F067AA0BA902B7


def fake_opentelemetry(monkeypatch, trace_id: int, span_id: int, flags: int = 1) -> None:
    """As much of opentelemetry.trace as a program that traces has loaded."""
    context = types.SimpleNamespace(
        trace_id=trace_id, span_id=span_id, trace_flags=flags, is_valid=bool(trace_id and span_id)
    )
    span = types.SimpleNamespace(get_span_context=lambda: context)
    module = types.ModuleType("opentelemetry.trace")
    module.get_current_span = lambda: span
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", module)


def test_the_current_span_becomes_a_traceparent(monkeypatch):
    fake_opentelemetry(monkeypatch, TRACE, SPAN)
    assert current_traceparent() == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    fake_opentelemetry(monkeypatch, TRACE, SPAN, flags=0)
    assert current_traceparent().endswith("-00")
    fake_opentelemetry(monkeypatch, 0, 0)
    assert current_traceparent() == ""


def test_without_opentelemetry_there_is_none(monkeypatch):
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert current_traceparent() == ""


def test_opentelemetrys_own_span_is_taken(monkeypatch):
    trace = pytest.importorskip("opentelemetry.trace")
    context = trace.SpanContext(TRACE, SPAN, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        assert current_traceparent() == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_the_server_sees_the_trace_of_a_compile(monkeypatch, server):
    fake_opentelemetry(monkeypatch, TRACE, SPAN)
    compiled = torch.compile(lambda x: (x * 3.25).cos() + 1, backend="kiln")
    compiled(torch.randn(37))
    assert "trace=4bf92f3577b34da6a3ce929d0e0e4736" in server.log.read_text()
