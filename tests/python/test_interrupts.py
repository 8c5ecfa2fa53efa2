"""Signals that come while a compile waits for a server that does not answer."""

import os
import signal
import threading
import time
import warnings

import pytest
import torch
from compare import assert_same
from conftest import Server
from test_progressive import wait_for_switch

import kiln_torch

SOON = 5  # seconds: a call that is waited for takes ten and more


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A server of the test's own, whose process it stops and lets go on."""
    running = Server(tmp_path / "data")
    monkeypatch.setenv("KILN_SERVER", running.address)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # xdist's processes ignore it
    yield running.process
    signal.signal(signal.SIGINT, before)
    running.process.send_signal(signal.SIGCONT)
    kiln_torch.reset()
    assert running.stop() == 0


@pytest.fixture
def on_alarm():
    """Sets what half a second from now is called for SIGALRM."""
    before = signal.getsignal(signal.SIGALRM)

    def arm(handler):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.5)

    yield arm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def fn(x):
    return (x * 3).softmax(-1) + x.sum()


def compiled_and_connected(is_known=True):
    """`fn` to be compiled, by a client that the server has or has not answered before."""
    if is_known:
        torch.compile(torch.tanh, backend="kiln", dynamic=False)(torch.ones(4))
    return torch.compile(fn, backend="kiln", dynamic=False)


def assert_compiles(compiled, x):
    before = kiln_torch.stats()["graphs"]
    assert_same(compiled(x), fn(x), fn(x.double()))
    stats = kiln_torch.stats()
    assert stats["graphs"] == before + 1 and not stats["fallbacks"]


def ctrl_c(compiled, x):
    """How long a KeyboardInterrupt out of `compiled` takes, in seconds."""
    sent = []

    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.5, send)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        compiled(x)
        timer.join()
    return time.monotonic() - sent[0]


@pytest.mark.parametrize("is_known", [True, False])
def test_ctrl_c_ends_a_compile_that_may_be_tried_again(own, is_known):
    compiled, x = compiled_and_connected(is_known), torch.randn(7, 9)
    own.send_signal(signal.SIGSTOP)
    for _ in range(2):
        assert ctrl_c(compiled, x) < SOON
    own.send_signal(signal.SIGCONT)
    assert_compiles(compiled, x)


def test_ctrl_c_ends_a_compile_of_the_backward_pass(own):
    compiled, x = compiled_and_connected(), torch.randn(7, 9, requires_grad=True)
    y = compiled(x)
    own.send_signal(signal.SIGSTOP)
    assert ctrl_c(lambda x: y.sum().backward(), x) < SOON
    own.send_signal(signal.SIGCONT)
    compiled(x).sum().backward()
    again = x.detach().clone().requires_grad_()
    fn(again).sum().backward()
    assert_same(x.grad, again.grad)


def test_a_handlers_own_exception_ends_a_compile(own, on_alarm):
    def handler(*_):
        raise LookupError("late")

    compiled, x = compiled_and_connected(), torch.randn(7, 9)
    own.send_signal(signal.SIGSTOP)
    on_alarm(handler)
    start = time.monotonic()
    with pytest.raises(Exception, match="late"):
        compiled(x)
    assert time.monotonic() - start < SOON
    own.send_signal(signal.SIGCONT)
    assert_compiles(compiled, x)


def test_a_compile_goes_on_after_a_handler_that_returns(own, on_alarm):
    compiled, x = compiled_and_connected(), torch.randn(7, 9)
    own.send_signal(signal.SIGSTOP)
    on_alarm(lambda *_: own.send_signal(signal.SIGCONT))
    assert_compiles(compiled, x)


def test_ctrl_c_leaves_the_compiles_of_other_threads_alone(own):
    compiled, x = compiled_and_connected(), torch.randn(7, 9)
    beside = torch.compile(torch.sigmoid, backend="kiln", mode="progressive", dynamic=False)
    own.send_signal(signal.SIGSTOP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(beside(x), torch.sigmoid(x))
        assert ctrl_c(compiled, x) < SOON
        own.send_signal(signal.SIGCONT)
        wait_for_switch()
    assert kiln_torch.stats()["progressive"]["switched"] == 1
    assert_compiles(compiled, x)
