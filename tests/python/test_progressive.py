"""mode "progressive": eager until the program arrives, then native, and right at all times."""

import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from compare import assert_same

import kiln_torch
from kiln_torch import progressive
from kiln_torch.settings import Settings


class Gate:
    """Holds back the threads that wait for compiles until it is opened."""

    def __init__(self, monkeypatch):
        self._opened = threading.Event()
        start = progressive._background.start

        def held(task):
            start(lambda: self._opened.wait(60) and task())

        monkeypatch.setattr(progressive._background, "start", held)

    def open(self):
        self._opened.set()
        wait_for_switch()


@pytest.fixture
def gate(monkeypatch):
    held = Gate(monkeypatch)
    yield held
    held.open()


def wait_for_switch():
    deadline = time.monotonic() + 60
    while kiln_torch.stats()["progressive"]["waiting"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kiln_torch.stats()["progressive"]["waiting"] == 0


def test_calls_run_eager_until_the_program_arrives(gate):
    def fn(x):
        return torch.softmax(x * 2, -1).sum(0)

    compiled = torch.compile(fn, backend="kiln", mode="progressive")
    x = torch.randn(7, 33)
    for _ in range(3):
        assert_same(compiled(x), fn(x))
    stats = kiln_torch.stats()
    assert stats["progressive"] == {"waiting": 1, "switched": 0, "eager_calls": 3}
    assert stats["run_calls"] == 0 and stats["graphs"] == 0
    gate.open()
    assert_same(compiled(x), fn(x))
    stats = kiln_torch.stats()
    assert stats["progressive"] == {"waiting": 0, "switched": 1, "eager_calls": 3}
    assert stats["run_calls"] == 1 and stats["graphs"] == 1 and not stats["fallbacks"]


def test_the_option_and_the_environment_say_the_same(monkeypatch):
    assert Settings.read({}).mode == "blocking"
    assert Settings.read({"mode": "progressive"}).mode == "progressive"
    monkeypatch.setenv("KILN_MODE", "progressive")
    assert Settings.read({}).mode == "progressive"
    with pytest.raises(ValueError, match="mode is 'hasty'; expected 'blocking' or 'progressive'"):
        Settings.read({"mode": "hasty"})


def test_the_switch_is_safe_between_threads(gate):
    def fn(x, y):
        return torch.nn.functional.gelu(x @ y) + x.sum(-1, keepdim=True)

    compiled = torch.compile(fn, backend="kiln", mode="progressive")
    inputs = [(torch.randn(16, 16), torch.randn(16, 16)) for _ in range(4)]
    compiled(*inputs[0])
    failures, calls = [], [0] * len(inputs)
    stop = threading.Event()

    def work(number):
        x, y = inputs[number]
        expected = fn(x, y)
        while not stop.is_set():
            if not torch.allclose(compiled(x, y), expected, atol=1e-4):
                failures.append(number)
            calls[number] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    while min(calls) < 5:
        time.sleep(0.005)
    gate.open()
    before = list(calls)
    while min(now - then for now, then in zip(calls, before, strict=True)) < 5:
        time.sleep(0.005)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    stats = kiln_torch.stats()
    assert stats["progressive"]["switched"] == 1
    assert stats["progressive"]["eager_calls"] >= 20 and stats["run_calls"] >= 20


def test_training_switches_between_two_steps(gate):
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 31), torch.nn.GELU(), torch.nn.LayerNorm(31), torch.nn.Linear(31, 5)
    )
    plain = torch.nn.Sequential(
        torch.nn.Linear(12, 31), torch.nn.GELU(), torch.nn.LayerNorm(31), torch.nn.Linear(31, 5)
    )
    plain.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="kiln", mode="progressive")
    sgd = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, plain)]
    for step in range(6):
        x = torch.randn(9, 12)
        if step == 3:
            gate.open()
        losses = [run(x).square().mean() for run in (compiled, plain)]
        for loss, optimizer in zip(losses, sgd, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
    for a, e in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)
    stats = kiln_torch.stats()
    assert stats["progressive"]["switched"] == 2 and stats["run_calls"] == 6
    assert stats["progressive"]["eager_calls"] == 6 and not stats["fallbacks"]


def test_guards_are_respected_before_and_after(gate):
    def fn(x, twice):
        return x * 2 if twice else x + 1

    compiled = torch.compile(fn, backend="kiln", mode="progressive", dynamic=False)
    cases = [(torch.randn(4), True), (torch.randn(4), False), (torch.randn(6), True)]
    for _ in range(2):
        for x, twice in cases:
            assert_same(compiled(x, twice), fn(x, twice))
    gate.open()
    for x, twice in cases:
        assert_same(compiled(x, twice), fn(x, twice))
    assert kiln_torch.stats()["progressive"]["switched"] == 3
    assert kiln_torch.stats()["run_calls"] == 3


def test_without_a_server_it_stays_eager_with_one_warning(gate):
    def fn(x):
        return x * 2 + 1

    x = torch.randn(3)
    options = {"server": "127.0.0.1:9", "mode": "progressive"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = torch.compile(fn, backend="kiln", options=options)
        assert_same(compiled(x), fn(x))
        gate.open()
        assert_same(compiled(x), fn(x))
    assert len([w for w in caught if "runs in eager mode" in str(w.message)]) == 1
    stats = kiln_torch.stats()
    assert len(stats["fallbacks"]) == 1 and stats["progressive"]["switched"] == 0


def test_where_eager_is_not_wanted_later_calls_raise(gate):
    options = {"server": "127.0.0.1:9", "mode": "progressive", "fallback": "raise"}
    compiled = torch.compile(lambda x: x - 1, backend="kiln", options=options)
    compiled(torch.ones(2))
    gate.open()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="127.0.0.1:9"):
            compiled(torch.ones(2))


def test_a_process_that_ends_waits_for_no_compile(server):
    # A port that takes connections and says nothing: the wait would last the whole time limit.
    script = (
        "import socket, torch, kiln_torch\n"
        "silent = socket.create_server(('127.0.0.1', 0))\n"
        "address = '127.0.0.1:%d' % silent.getsockname()[1]\n"
        "options = {'server': address, 'mode': 'progressive'}\n"
        "f = torch.compile(lambda x: x * 3, backend='kiln', options=options)\n"
        "waiting = lambda: kiln_torch.stats()['progressive']['waiting']\n"
        "print(f(torch.ones(2)).tolist(), waiting(), flush=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[0] == "[3.0, 3.0] 1"
