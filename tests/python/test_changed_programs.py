"""A server that signs programs which are not those of the graph: eager, or a typed error.

The server is tests/integration's kilnd_misbehaving, which lies where a string of the graph says so.
"""

import warnings

import pytest
import torch
from conftest import BUILD, Server

import kiln_torch

LIBRARY = torch.library.Library("kiln_lie", "DEF")
LIBRARY.define("told(Tensor x, str lie) -> Tensor")
LIBRARY.impl("told", lambda x, lie: x * 2, "CPU")
LIBRARY.impl("told", lambda x, lie: torch.empty_like(x), "Meta")

AT_LOAD = {
    "no_output": "has 0 outputs; expected 1",
    "more_outputs": "has 2 outputs; expected 1",
    "output_none": "is nothing; expected a tensor",
    "output_number": "is a number; expected a tensor",
    "output_input": "lies in input 0",
    "smaller_output": "bytes as buffer",
    "fewer_buffers": "buffers and 0 sizes",
    "other_step": "aten.relu_.default .* is no call of it",
    "uncountable": "the workspace has",
}


@pytest.fixture(scope="module")
def liar(tmp_path_factory):
    program = BUILD / "tests" / "kilnd_misbehaving"
    if not program.exists():
        pytest.skip("built without tests")
    running = Server(tmp_path_factory.mktemp("liar") / "data", program=program)
    yield running
    assert running.stop() == 0


def model(lie):
    def fn(x):
        return torch.ops.kiln_lie.told(x, lie) + x.sin() - 1

    return fn


def run(fn, x, server, **options):
    torch._dynamo.reset()
    options |= {"server": server.address}
    return torch.compile(fn, backend="kiln", dynamic=False, options=options)(x)


def test_an_honest_answer_of_that_server_runs(liar):
    x = torch.randn(6, 3)
    fn = model("nothing")
    torch.testing.assert_close(run(fn, x, liar), fn(x))
    assert kiln_torch.stats()["fallbacks"] == []
    assert kiln_torch.stats()["steps"] == {"native": 1, "library": 1}


@pytest.mark.parametrize("lie", AT_LOAD)
def test_a_changed_program_runs_eager(liar, lie):
    x = torch.randn(6, 3)
    fn, before = model(f"lie:{lie}"), x.clone()
    with pytest.warns(UserWarning, match=AT_LOAD[lie]):
        out = run(fn, x, liar)
    assert torch.equal(out, fn(x)) and torch.equal(x, before)
    assert len(kiln_torch.stats()["fallbacks"]) == 1
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=AT_LOAD[lie]):
        run(fn, x, liar, fallback="raise")


def test_a_program_that_fails_to_run_runs_eager(liar):
    x = torch.randn(6, 3)
    fn, before = model("lie:terabytes"), x.clone()
    with pytest.warns(UserWarning, match="cannot allocate"):
        out = run(fn, x, liar)
    assert torch.equal(out, fn(x)) and torch.equal(x, before)
    (fallback,) = kiln_torch.stats()["fallbacks"]
    assert "cannot allocate" in fallback["reason"]
    with pytest.raises(kiln_torch.RunError, match="cannot allocate"):
        run(fn, x, liar, fallback="raise")


def test_in_progressive_mode_it_stays_eager(liar):
    x = torch.randn(6, 3)
    fn = model("lie:output_none")
    torch._dynamo.reset()
    options = {"server": liar.address, "mode": "progressive"}
    compiled = torch.compile(fn, backend="kiln", dynamic=False, options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(200):
            assert torch.equal(compiled(x), fn(x))
            if kiln_torch.stats()["progressive"]["waiting"] == 0:
                break
            torch.rand(1000, 1000) @ torch.rand(1000, 1000)
        assert torch.equal(compiled(x), fn(x))
    assert len(kiln_torch.stats()["fallbacks"]) == 1


def test_a_step_that_this_torch_does_not_have_runs_eager(liar, monkeypatch):
    def unknown(name):
        raise AttributeError(f"no operator {name}")

    monkeypatch.setattr("kiln_torch.library._find_op", unknown)
    x = torch.randn(6, 3)
    fn = model("nothing at all")
    with pytest.warns(UserWarning, match="no operator kiln_lie.told"):
        assert torch.equal(run(fn, x, liar), fn(x))
    assert len(kiln_torch.stats()["fallbacks"]) == 1


def test_an_error_out_of_the_middle_of_a_run_runs_eager(liar, monkeypatch):
    """As torch's own is, where it has no memory for a result."""
    calls = []

    def fail(tensors, sizes):
        calls.append(tensors)
        raise RuntimeError("not enough memory: you tried to allocate it")

    monkeypatch.setattr("kiln_torch.program.LibraryStep", lambda *_: fail)
    x = torch.randn(6, 3)
    fn, before = model("nothing"), x.clone()
    with pytest.warns(UserWarning, match="not enough memory"):
        assert torch.equal(run(fn, x, liar), fn(x))
    assert len(calls) == 1 and torch.equal(x, before)
    assert len(kiln_torch.stats()["fallbacks"]) == 1
    with pytest.raises(kiln_torch.RunError, match="not enough memory"):
        run(fn, x, liar, fallback="raise")
