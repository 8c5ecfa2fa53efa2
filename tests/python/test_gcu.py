"""Models on a simulated GCU through torch.compile(options={"device": "gcu-16m"}), against eager."""

import functools
import json
import os
import re
import subprocess
import time
import urllib.request

import pytest
import small_models
import torch
from compare import assert_same, double_reference
from conftest import BUILD
from model_step import compare_step

import kiln_torch

OPTIONS = {"device": "gcu-16m", "fallback": "raise"}
F = torch.nn.functional


@pytest.fixture(autouse=True)
def report(tmp_path, monkeypatch):
    """Lines of JSON, one a launch: that something ran on the device at all."""
    path = tmp_path / "launches.jsonl"
    monkeypatch.setenv("KILN_GCU_REPORT", str(path))

    def launches():
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]

    return launches


def run_kiln(server, *arguments):
    """What the command prints."""
    command = [str(BUILD / "bin" / "kiln"), *map(str, arguments)]
    environment = {**os.environ, "KILN_SERVER": server.address}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(fn, args, report, dynamic=False, tol=1e-4):
    compiled = torch.compile(fn, backend="kiln", dynamic=dynamic, options=OPTIONS)
    with torch.no_grad():
        for given in args:
            reference = None
            if any(a.dtype == torch.float32 for a in given):
                reference = double_reference(fn, given)
            assert_same(compiled(*given), fn(*given), reference, tol=tol)
    assert report(), "nothing ran on the device"


@pytest.mark.parametrize("name", ["mlp", "resnet", "bert", "gpt2", "unet", "mobilenet"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_models(name, dtype, report):
    model, inputs = small_models.make(small_models.MODELS[name])
    model = model.eval().to(dtype)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    compiled = torch.compile(model, backend="kiln", options=OPTIONS)
    with torch.no_grad():
        expected, actual = model(**inputs), compiled(**inputs)
    if hasattr(expected, "to_tuple"):
        expected, actual = expected.to_tuple(), actual.to_tuple()
    assert_same(actual, expected, tol={torch.float32: 1e-3, torch.bfloat16: 4e-2, torch.float16: 1e-2}[dtype])
    assert report()


@pytest.mark.parametrize(
    ("name", "precision"),
    [("resnet", "float32"), ("bert", "float32"), ("bert", "bfloat16"), ("unet", "autocast")],
)
def test_a_training_step_equals_eagers(name, precision, report, monkeypatch):
    monkeypatch.setenv("KILN_DEVICE", "gcu-16m")
    model, inputs = small_models.make(small_models.MODELS[name])
    assert compare_step(model, inputs, precision, then=[inputs])["fallbacks"] == []
    assert report()


@pytest.mark.parametrize("rows", [1, 2, 13])
def test_gradients_of_reductions_with_few_rows(rows, report):
    """One row a program is where such a compiler once gave wrong gradients, and right results."""

    def step(run, x, w):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        y = run(x, w)
        y.square().sum().backward()
        return y.detach(), x.grad, w.grad

    def fn(x, w):
        y = F.layer_norm(x @ w, (w.shape[1],)).softmax(-1)
        return y * y.amax(1, keepdim=True) + x.sum(1, keepdim=True).logsumexp(0)

    x, w = torch.randn(rows, 37), torch.randn(37, 53)
    actual = step(torch.compile(fn, backend="kiln", options=OPTIONS), x, w)
    expected = step(fn, x, w)
    reference = step(fn, x.double(), w.double())
    assert_same(actual, expected, reference)
    assert report()


def gradients(run, model, x):
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = run(x)
    y.square().mean().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("rows", [12000, 11987])
def test_gradients_of_weights_are_sums_over_tiles(rows, report, tmp_path, server):
    """Of a layer whose activations do not fit L2: each tile of rows gives its part of the sums."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 512), torch.nn.GELU(), torch.nn.Linear(512, 8))
    x = torch.randn(rows, 16)
    graphs = kiln_torch.save_graph(model, (x,), tmp_path / "m.kgraph", train=True)
    told = [json.loads(run_kiln(server, "explain", g, "--target", "gcu", "--arch", "gcu-16m", "--json")) for g in graphs]
    reasons = [r for one in told for k in one["debug"]["kernels"] for r in k.get("schedule", [])]
    assert any("sums over tiles" in reason for reason in reasons), reasons
    actual = gradients(torch.compile(model, backend="kiln", options=OPTIONS), model, x)
    expected = gradients(model, model, x)
    reference = gradients(model.double(), model, x.double())
    assert_same(actual, expected, reference)
    assert report()


def test_sums_over_tiles_of_a_number_of_rows_known_at_run_time(report):
    """One program for all: as fast as with known rows, and right for whole tiles, a part of one and both."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 512), torch.nn.GELU(), torch.nn.Linear(512, 8))

    def time(run, x):
        before = len(report())
        results = gradients(run, model, x)
        return results, sum(launch["time_ps"] for launch in report()[before:])

    x = torch.randn(12000, 16)
    _, known = time(torch.compile(model, backend="kiln", options=OPTIONS), x)
    compiled = torch.compile(model, backend="kiln", dynamic=True, options=OPTIONS)
    double = torch.nn.Sequential(torch.nn.Linear(16, 512), torch.nn.GELU(), torch.nn.Linear(512, 8)).double()
    double.load_state_dict(model.state_dict())
    for rows in (12000, 2, 13, 11987, 512, 6000, 30011):
        x = torch.randn(rows, 16)
        actual, taken = time(compiled, x)
        assert_same(actual, gradients(model, model, x), gradients(double, double, x.double()))
        assert taken < 1.1 * known * max(rows, 1000) / 12000, rows


def test_batches_of_any_size(report):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 16, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 5),
    ).eval()
    batches = [(torch.randn(n, 3, 20, 20),) for n in (2, 7, 3, 33, 16, 64, 5)]
    torch._dynamo.mark_dynamic(batches[0][0], 0)
    check(model, batches, report, dynamic=True)


@pytest.mark.parametrize("images", [8, 21])
def test_groups_that_run_tile_by_tile(images, report):
    """Activations larger than L2: some launch loops over images, the last tile may be shorter."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 4, 1),
    ).eval()
    check(model, [(torch.randn(images, 4, 96, 96),)], report)
    assert any(line["l2_peak_bytes"] > 1 << 20 for line in report())
    assert all(line["l2_peak_bytes"] <= 16 << 20 for line in report())


class Pyramid(torch.nn.Module):
    """Poolings, a depthwise convolution and a residual link over tensors of which none fits L2."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 24, 3, padding=1)
        self.depthwise = torch.nn.Conv2d(24, 24, 3, padding=2, dilation=2, groups=24)
        self.last = torch.nn.Conv2d(24, 4, 1)

    def forward(self, x):
        x = F.max_pool2d(self.first(x).relu(), 3, stride=1, padding=1)
        y = F.avg_pool2d(self.depthwise(x).relu(), 3, stride=1, padding=1)
        return self.last(F.max_pool2d(x + y, 3, stride=2, padding=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [(440, 450), (609, 389)])
def test_pictures_that_do_not_fit_run_in_tiles_that_overlap(size, dtype, report):
    model, x = Pyramid().eval().to(dtype), torch.randn(1, 3, *size, dtype=dtype)
    compiled = torch.compile(model, backend="kiln", options=OPTIONS)
    with torch.no_grad():
        expected, actual = model(x), compiled(x)
    assert_same(actual, expected, tol={torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}[dtype])
    assert report()


def test_sizes_of_run_time_choose_among_versions(report, tmp_path, server):
    """Small batches stay on the chip whole, large ones run tile by tile, in one program."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 4, 1),
    ).eval()
    # Sizes below 16 would be another graph: torch's convolution asks for them apart.
    batches = [(torch.randn(images, 4, 64, 64),) for images in (20, 16, 27, 32, 75)]
    torch._dynamo.mark_dynamic(batches[0][0], 0)
    check(model, batches, report, dynamic=True)
    [graph] = kiln_torch.save_graph(model, batches[0], tmp_path / "m.kgraph")
    told = run_kiln(server, "explain", graph, "--target", "gcu", "--arch", "gcu-16m")
    assert re.search(r"DAFE, for s\d+ <= \d+: AFE: everything in one launch", told), told
    assert re.search(r"DAFE, for other sizes: TLF: tiles of \d+", told), told
    # A run at the typical size is of one version, and the table has its time beside that one's.
    rows = re.findall(r"(\S+) +(\S+)  DAFE: (?:AFE|TLF) for (?:s\d+ <= \d+|other sizes)", told)
    assert len(rows) > 1, told
    assert len([row for row in rows if row != ("-", "-")]) == 1, told


def test_what_the_device_lacks_runs_on_the_host(report):
    """64-bit indices, a sort and float64 between launches: declared steps, and their data follow."""

    def fn(x, table, index):
        y = torch.relu(x @ x.t()) + table[index].sum(1, keepdim=True)
        order = y.argsort(dim=1)
        return torch.gather(y * 2, 1, order), y.double().sum(), (y + 1).to(torch.int64)

    check(fn, [(torch.randn(9, 9), torch.randn(30, 4), torch.randint(0, 30, (9,)))], report)


def test_inputs_that_a_graph_updates(report):
    def fn(x, state):
        state.mul_(0.5).add_(x.tanh())
        return state.sum(0)

    compiled = torch.compile(fn, backend="kiln", options=OPTIONS)
    x, a, b = torch.randn(6, 8), torch.zeros(6, 8), torch.zeros(6, 8)
    with torch.no_grad():
        for _ in range(3):
            assert_same(compiled(x, a), fn(x, b))
            assert_same(a, b)
    assert report()


@pytest.mark.parametrize("change", ["in_place", "data", "assigned", "loaded"])
def test_weights_stay_on_the_device_until_they_change(change, report):
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5)).eval()
    compiled = torch.compile(model, backend="kiln", options=OPTIONS)
    x = torch.randn(4, 20)
    with torch.no_grad():
        for _ in range(3):
            assert_same(compiled(x), model(x))
            weight = model[0].weight
            if change == "in_place":
                weight.mul_(-1.5)
            elif change == "data":
                weight.data.mul_(-1.5)
            elif change == "assigned":
                weight.data = torch.randn(30, 20)
            else:
                model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
            for _ in range(2):
                assert_same(compiled(x), model(x))
    assert report()


def test_the_command_line_compiles_runs_and_tells_the_time(tmp_path, server):
    model = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.GELU(), torch.nn.Linear(24, 8))
    [graph] = kiln_torch.save_graph(model.eval(), (torch.randn(5, 40),), tmp_path / "m.kgraph")
    kiln = functools.partial(run_kiln, server)

    target = ("--target", "gcu", "--arch", "gcu-16m")
    assert "for gcu-16m" in kiln("compile", graph, *target, "-o", tmp_path / "m.kiln")
    ran = kiln("run", graph, *target, "--check")
    assert "outputs equal the reference" in ran
    assert "gcu-16m, 1 launch, " in ran
    assert "gcu-16m, 1 launch, " in kiln("run", tmp_path / "m.kiln")
    source = kiln("compile", graph, *target, "--emit", "source")
    assert ".profile gcu-16m" in source and "m.mul" in source


@pytest.mark.parametrize("images", [None, 21])
def test_explain_tells_plans_beside_what_the_simulator_says(images, report, tmp_path, server):
    """The numbers of the table are those of the simulator's own report, launch by launch."""
    if images is None:
        model, args = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.GELU(), torch.nn.Linear(24, 8)), (5, 40)
    else:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(4, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1)
        )
        args = (images, 4, 96, 96)
    [graph] = kiln_torch.save_graph(model.eval(), (torch.randn(args),), tmp_path / "m.kgraph")
    target = ("--target", "gcu", "--arch", "gcu-16m")
    told = json.loads(run_kiln(server, "explain", graph, *target, "--json"))["debug"]
    simulated = {}
    for line in report():
        simulated.setdefault(line["kernel"], []).append(line)
    times = told["device_times"]
    assert times["device"] == "gcu-16m"
    assert {t["kernel"] for t in times["launches"]} == set(simulated)
    plans = {k["symbol"]: k["plans"] for k in told["kernels"] if "plans" in k}
    for time in times["launches"]:
        lines = simulated[time["kernel"]]
        assert time["launches"] == len(lines)
        assert time["mean_us"] == pytest.approx(sum(x["time_ps"] for x in lines) / len(lines) / 1e6)
        [plan] = plans[time["kernel"]]
        assert int(time["l2_peak_bytes"]) == max(x["l2_peak_bytes"] for x in lines)
        assert int(plan.get("l2_peak_bytes", 0)) == int(time["l2_peak_bytes"]), "planned is what is used"
        assert plan["strategy"] in ("AFE", "TLF", "one kernel")
    strategies = {plan["strategy"] for [plan] in plans.values()}
    assert ("TLF" in strategies) == (images is not None)
    text = run_kiln(server, "explain", graph, *target)
    for time in times["launches"]:
        [plan] = plans[time["kernel"]]
        off = (plan["predicted_us"] - time["mean_us"]) / time["mean_us"] * 100
        row = f"{plan['predicted_us']:9.1f}  {plan['unfused_us']:9.1f}  {time['mean_us']:9.1f}  {off:+7.1f}  {plan['strategy']}"
        assert row in text, text
    total = sum(x["time_ps"] for lines in simulated.values() for x in lines) / 1e6
    assert f"simulated {total:.1f} us, error " in text


def ask(server, path, method="GET"):
    """What the page's interface answers."""
    asked = urllib.request.Request(f"http://{server.http}/api/v1/{path}", method=method, headers={"Kiln-Page": "1"})
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)


def reported_times(server, key):
    """Of the compile's details on the page: what a client told of a run, and what was predicted."""
    state = ask(server, f"compiles/{key}/details", "POST")
    deadline = time.monotonic() + 60
    while state["state"] == "working" and time.monotonic() < deadline:
        time.sleep(0.05)
        state = ask(server, f"compiles/{key}/details")
    assert state["state"] == "ready", state
    detail = state["detail"]
    return detail.get("device_times"), {k["symbol"]: k["plans"] for k in detail["kernels"] if "plans" in k}


@pytest.mark.parametrize("train", [False, True])
def test_the_page_has_the_times_of_the_first_run(train, report, server):
    """Of each program that torch.compile made, forward and backward: those of the simulator's own report."""
    model = torch.nn.Sequential(torch.nn.Linear(43, 29), torch.nn.GELU(), torch.nn.Linear(29, 7 + train))
    compiled = torch.compile(model, backend="kiln", options=OPTIONS)
    before = {record["key"] for record in ask(server, "activity?recent=200")["recent"]}
    for _ in range(2):
        with torch.set_grad_enabled(train):
            y = compiled(torch.randn(6, 43))
        if train:
            y.sum().backward()
    keys = {record["key"] for record in ask(server, "activity?recent=200")["recent"]} - before
    assert len(keys) == 1 + train
    simulated = {}
    for line in report():
        simulated.setdefault(line["kernel"], []).append(line["time_ps"] / 1e6)
    told = {}
    for key in keys:
        times, plans = reported_times(server, key)
        assert times["device"] == "gcu-16m"
        assert {t["kernel"] for t in times["launches"]} == set(plans)
        told |= {t["kernel"]: t for t in times["launches"]}
    assert set(told) == set(simulated)
    for name, one in told.items():
        assert one["mean_us"] in [pytest.approx(x) for x in simulated[name]]


def test_explain_without_a_runtime_says_so(tmp_path, server, monkeypatch):
    [graph] = kiln_torch.save_graph(torch.nn.Linear(4, 4).eval(), (torch.randn(2, 4),), tmp_path / "m.kgraph")
    monkeypatch.setenv("KILN_LIBGCU", str(tmp_path / "none.so"))
    command = [str(BUILD / "bin" / "kiln"), "explain", str(graph), "--target", "gcu", "--arch", "gcu-16m"]
    environment = {**os.environ, "KILN_SERVER": server.address}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "times are predicted alone: there is no runtime of a GCU here" in done.stderr
    assert "simulated: not run" in done.stdout


def test_an_unknown_device_is_named():
    with pytest.raises(Exception, match="expected a GCU's profile"):
        torch.compile(lambda x: x + 1, backend="kiln", options={"device": "tpu"})(torch.ones(2))
