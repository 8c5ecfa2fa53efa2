"""options={"check": True}: what differs from eager is named, and can be run again."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import torch
from compare import assert_same

import kiln_torch
from kiln_torch import graphs, repro
from kiln_torch.compare import difference

KILN = pathlib.Path(os.environ.get("KILN_BUILD", "build/release")).resolve() / "bin" / "kiln"


def mixed(x, y):
    hidden = torch.relu(x @ y)
    scaled = hidden.softmax(-1) * 3
    return scaled.transpose(0, 1).sum(0), torch.topk(scaled, 2)[1]


def plant(monkeypatch, op, replacement):
    """From now on the server is sent `replacement` where the graph calls `op`: really another result."""
    capture = graphs.capture

    def captured(module, is_parameter, name="graph", eager_random=False):
        graph = json.loads(capture(module, is_parameter, name, eager_random))
        for node in graph["nodes"]:
            if node["op"] == op:
                node["op"] = replacement
        return json.dumps(graph)

    monkeypatch.setattr(graphs, "capture", captured)


def run(fn, *args, dynamic=None, mode=None, **options):
    options = {"check": True, "fallback": "raise", **options}
    return torch.compile(fn, backend="kiln", dynamic=dynamic, mode=mode, options=options)(*args)


def failure(fn, *args, **options):
    with pytest.raises(kiln_torch.CheckFailed) as raised:
        run(fn, *args, **options)
    return str(raised.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_right_graphs_pass_and_are_counted(dynamic):
    x, y = torch.randn(5, 6, requires_grad=True), torch.randn(6, 7)
    total, _ = run(mixed, x, y, dynamic=dynamic)
    total.square().sum().backward()
    assert kiln_torch.stats()["checks"] == {"graphs": 2, "calls": 2, "differences": 0}


def update(x, y):
    x.mul_(y.cos())


def test_what_a_call_leaves_in_its_inputs_is_compared(monkeypatch, tmp_path):
    x, y, expected = torch.ones(5), torch.randn(5), torch.ones(5)
    run(update, x, y)
    update(expected, y)
    assert difference(x, expected) is None
    torch._dynamo.reset()
    plant(monkeypatch, "aten.cos.default", "aten.sin.default")
    message = failure(update, x, y, debug_dir=str(tmp_path))
    assert "after the call" in message
    (folder,) = tmp_path.glob("*-check")
    assert not repro.replay(folder)
    graph = json.loads((folder / "graph.json").read_text())
    graph["nodes"][0]["op"] = "aten.cos.default"
    (folder / "graph.json").write_text(json.dumps(graph))
    assert repro.replay(folder)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_first_wrong_operator_and_its_line_are_named(monkeypatch, tmp_path, dynamic):
    plant(monkeypatch, "aten.cos.default", "aten.sin.default")

    def fn(x):
        y = x.exp() + 1
        z = torch.cos(y)  # the planted line
        return (z * 2).sum(-1), y

    line = fn.__code__.co_firstlineno + 2
    text = failure(fn, torch.randn(4, 8), dynamic=dynamic, debug_dir=str(tmp_path))
    assert "output 0 differs in 4 of 4 elements" in text
    assert f"First wrong operator: aten.cos.default (node cos), test_check.py:{line} in fn" in text
    assert kiln_torch.stats()["checks"]["differences"] == 1


def test_a_wrong_backward_is_found(monkeypatch, tmp_path):
    plant(monkeypatch, "aten.cos.default", "aten.sin.default")
    x = torch.randn(4, 8, requires_grad=True)
    y = run(torch.sin, x, debug_dir=str(tmp_path))  # whose backward is a cosine
    with pytest.raises(kiln_torch.CheckFailed, match="_backward differs from eager"):
        y.sum().backward()


def test_progressive_mode_checks_what_it_switches_to(monkeypatch, tmp_path):
    plant(monkeypatch, "aten.cos.default", "aten.sin.default")
    options = {"check": True, "mode": "progressive", "debug_dir": str(tmp_path)}
    compiled = torch.compile(torch.cos, backend="kiln", options=options)
    with pytest.raises(kiln_torch.CheckFailed):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            compiled(torch.randn(4))


def kiln_run(folder, *flags):
    command = [KILN, "run", folder / "graph.kgraph", "--inputs", folder / "inputs.npz"]
    command += ["--expect", folder / "expected.npz", "--server", os.environ["KILN_SERVER"], *flags]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("dtype", "dynamic"), [(torch.float32, True), (torch.bfloat16, False), (torch.float64, False)]
)
def test_kiln_run_shows_the_difference_again(monkeypatch, tmp_path, dtype, dynamic):
    plant(monkeypatch, "aten.cos.default", "aten.sin.default")

    def fn(x, n):
        return torch.cos(x.t()) * n, x.shape[0], x.int()

    x = torch.randn(6, 9)[:, ::2].to(dtype)
    failure(fn, x, torch.tensor(3), dynamic=dynamic, debug_dir=str(tmp_path))
    (folder,) = tmp_path.glob("*-check")
    wrong = kiln_run(folder)
    assert wrong.returncode == 1 and "wrong result: output 0: element 0 is" in wrong.stderr
    assert f"kiln run {folder}/graph.kgraph" in (folder / "README").read_text()

    # The right graph on the same inputs passes, so it is the graph that is wrong.
    graph = (folder / "graph.json").read_text().replace("aten.sin.default", "aten.cos.default")
    (folder / "graph.kgraph").write_bytes(kiln_torch._kiln.graph_to_bytes(graph))
    right = kiln_run(folder)
    assert right.returncode == 0, right.stderr
    assert "outputs equal" in right.stdout


def test_a_graph_with_library_steps_comes_with_a_script(monkeypatch, tmp_path):
    plant(monkeypatch, "aten.cos.default", "aten.sin.default")

    def fn(x):
        return torch.nanmedian(torch.cos(x), 1)[0]

    failure(fn, torch.randn(3, 7), debug_dir=str(tmp_path))
    (folder,) = tmp_path.glob("*-check")
    assert "aten.nanmedian.dim" in (folder / "README").read_text()
    refused = kiln_run(folder)
    assert refused.returncode != 0 and "aten.nanmedian.dim" in refused.stderr
    shown = subprocess.run(
        [sys.executable, folder / "repro.py"], capture_output=True, text=True, env=os.environ
    )
    assert shown.returncode == 1 and "output 0 differs in 3 of 3 elements" in shown.stdout


def test_random_operators_draw_what_eager_draws():
    def fn(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.randn(50)
    torch.manual_seed(3)
    first, second = run(fn, x), torch.rand(3)
    torch.manual_seed(3)
    torch._dynamo.reset()
    plain = torch.compile(fn, backend="kiln", options={"fallback_random": True})(x)
    assert torch.equal(first, plain) and torch.equal(second, torch.rand(3))


def test_written_inputs_and_shared_storage_stay_as_they_are():
    def fn(x, y):
        x.add_(1)
        y[1:].mul_(2)
        return x.sum() + y.sum()

    base = torch.randn(12)
    mine = base.clone()
    run(fn, base[:6], base[6:])
    fn(mine[:6], mine[6:])
    assert torch.equal(base, mine)
    assert kiln_torch.stats()["checks"]["calls"] == 1


def test_an_error_of_eager_is_the_calls_error():
    def fn(table, index):
        return torch.nn.functional.embedding(index, table)

    with pytest.raises(IndexError):
        run(fn, torch.randn(10, 4), torch.tensor([1, 10]))


def test_the_option_is_off_unless_it_is_asked_for(monkeypatch):
    torch.compile(torch.cos, backend="kiln")(torch.randn(3))
    assert kiln_torch.stats()["checks"]["graphs"] == 0
    torch._dynamo.reset()
    monkeypatch.setenv("KILN_CHECK", "1")
    torch.compile(torch.cos, backend="kiln")(torch.randn(3))
    assert kiln_torch.stats()["checks"]["graphs"] == 1


@pytest.mark.parametrize(
    ("ours", "eager", "says"),
    [
        (torch.ones(2), torch.ones(2), None),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]), None),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0]), "1 of 2 elements, most at (1,)"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "dtype torch.float32"),
        (torch.ones(2), torch.ones(3), "shape (2,); eager's is (3,)"),
        (torch.ones(2, 3), torch.ones(3, 2).t(), "strides (3, 1); eager's are (1, 2)"),
        (torch.tensor([2**60 + 1]), torch.tensor([2**60]), "1 of 1"),
        (torch.tensor([True]), torch.tensor([False]), "True; eager gives False"),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64) * 1j, "2 of 2"),
        (None, None, None),
        (3, 4, "is 3; eager gives 4"),
    ],
)
def test_what_counts_as_a_difference(ours, eager, says):
    found = difference(ours, eager)
    assert found is None if says is None else says in found


@pytest.mark.parametrize("special", [float("nan"), float("inf")])
def test_what_is_beside_a_number_that_is_not_finite_is_compared(special):
    """torch's own check takes all of these for equal where the reference has a NaN."""
    eager = torch.tensor([special, 1.0, 2.0])
    for ours in ([special, 1.0, 3.0], [0.0, 1.0, 2.0], [special, special, 2.0]):
        assert difference(torch.tensor(ours), eager, eager.double()) is not None
        with pytest.raises(AssertionError):
            assert_same(torch.tensor(ours), eager, eager.double())
    near = eager * (1 + 1e-7)
    assert difference(near, eager, eager.double()) is None
    assert_same(near, eager, eager.double())
    # Where float64 says another thing than eager does, either goes.
    wide = torch.tensor([5.0, 1.0, 2.0], dtype=torch.float64)
    assert difference(torch.tensor([4.0, 1.0, 2.0]), eager, wide) is None


def test_npz_files_hold_every_type(tmp_path):
    values = {
        str(dtype)[6:]: (torch.randn(2, 3) * 5).to(dtype)
        for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.complex64)
    } | {"empty": torch.empty(0, 2, dtype=torch.bfloat16), "scalar": torch.tensor(True)}
    repro.write_npz(tmp_path / "a.npz", values)
    read = repro.read_npz(tmp_path / "a.npz")
    for name, value in values.items():
        assert read[name].dtype == value.dtype and torch.equal(read[name], value)
