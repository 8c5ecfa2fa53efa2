"""mode "reduce-overhead" without a GPU: what a replay reads and writes, with recordings that run again."""

import contextlib

import pytest
import torch

from kiln_torch import replay
from kiln_torch.replay import Replayed


class Recorder:
    """Stands for torch.cuda.graph: what was called while recording, each replay calls again, on the
    places that were given then and into the outputs that were returned then."""

    def __init__(self, fn, refuses=False):
        self._fn = fn
        self._refuses = refuses
        self._calls = None
        self.runs = 0  # of the program itself

    def run(self, inputs):
        if self._calls is None:
            self.runs += 1
            return self._fn(inputs)
        if self._refuses:
            raise RuntimeError("an operator waits for the GPU")
        # A recording computes nothing.
        outputs = self._fn([value.clone() for value in inputs])
        outputs = [inputs[o] if isinstance(o, int) else torch.full_like(o, -1) for o in outputs]
        self._calls.append((inputs, outputs))
        return outputs

    @contextlib.contextmanager
    def recording(self, graph, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self._calls = calls = []
        try:
            yield
        finally:
            self._calls = None
        graph.calls = calls
        graph.fn = self._fn


class Graph:
    def replay(self):
        for inputs, outputs in self.calls:
            for out, value in zip(outputs, self.fn(inputs), strict=True):
                if not isinstance(value, int):
                    out.copy_(value)


class Event:
    def record(self, stream):
        pass


@pytest.fixture
def make(monkeypatch):
    """A function (fn, fixed, updated) -> (Replayed, its Recorder)."""

    def made(fn, fixed=(), updated=(), refuses=False):
        recorder = Recorder(fn, refuses)
        monkeypatch.setattr(torch.cuda, "graph", recorder.recording)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: 0)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        return Replayed(recorder.run, fixed, updated, lambda: None), recorder

    return made


def test_outputs_are_the_callers(make):
    run, recorder = make(lambda inputs: [inputs[0] * 2, inputs[0] + 1])
    kept = []
    for i in range(6):
        x = torch.full((3,), float(i))
        kept.append((x, run([x])))
    for x, (a, b) in kept:
        assert torch.equal(a, x * 2)
        assert torch.equal(b, x + 1)
    assert recorder.runs == replay._WARM_UPS


def test_parameters_are_read_where_they_are(make):
    run, recorder = make(lambda inputs: [inputs[0] @ inputs[1]], fixed=(1,))
    weight = torch.randn(4, 3)
    for i in range(9):
        if i == 4:
            weight.mul_(3)
        if i == 6:
            weight = torch.randn(4, 3)
        x = torch.randn(2, 4)
        torch.testing.assert_close(run([x, weight])[0], x @ weight)
    assert recorder.runs == replay._WARM_UPS


def test_parameters_that_move_in_every_call_end_the_replays(make):
    run, recorder = make(lambda inputs: [inputs[0] * 2], fixed=(0,))
    calls = 12
    weights = [torch.randn(4) for _ in range(calls)]
    for weight in weights:
        assert torch.equal(run([weight])[0], weight * 2)
    assert recorder.runs == calls - replay._MOST_RECORDINGS


def test_updated_inputs_are_updated(make):
    def step(inputs):
        inputs[0].add_(inputs[1])
        return [inputs[0] * 2]

    run, _ = make(step, updated=(0,))
    cache, expected = torch.zeros(3), torch.zeros(3)
    for i in range(7):
        x = torch.full((3,), float(i))
        expected += x
        assert torch.equal(run([cache, x])[0], expected * 2)
        assert torch.equal(cache, expected)


def test_an_input_that_is_an_output_is_handed_on(make):
    run, _ = make(lambda inputs: [inputs[0] + 1, 1])
    for i in range(5):
        x, y = torch.full((2,), float(i)), torch.full((2,), -float(i))
        out, same = run([x, y])
        assert torch.equal(out, x + 1)
        if i >= replay._WARM_UPS:
            assert same is y


def test_what_cannot_be_recorded_runs_as_it_comes(make):
    run, recorder = make(lambda inputs: [inputs[0] + 1], refuses=True)
    for i in range(6):
        x = torch.full((2,), float(i))
        assert torch.equal(run([x])[0], x + 1)
    assert recorder.runs == 6


def test_inputs_whose_elements_share_places_run_as_they_come(make):
    run, recorder = make(lambda inputs: [inputs[0] + 1])
    for i in range(6):
        x = torch.full((1,), float(i)).expand(4)
        assert torch.equal(run([x])[0], x + 1)
    assert recorder.runs == 6


def test_a_callers_own_recording_has_the_run_itself(make, monkeypatch):
    run, recorder = make(lambda inputs: [inputs[0] + 1])
    for _ in range(4):
        run([torch.ones(2)])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    run([torch.ones(2)])
    assert recorder.runs == replay._WARM_UPS + 1
