"""Graphs on CUDA devices, as they are captured: with fake tensors, for there need not be a GPU."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._subclasses import FakeTensorMode

import kiln_torch
from kiln_torch import backend, devices, program, recompute
from kiln_torch.capture import CaptureError, capture
from kiln_torch.decompositions import decompositions
from kiln_torch.library import _STATE_ON_CPU, _with_state_on_cpu
from kiln_torch.segments import Parted, can_be_parted
from kiln_torch.settings import Settings

aten = torch.ops.aten
F = torch.nn.functional


def traced(fn, *described):
    """fn on tensors given as (device, sizes...), without gradients, as AOTAutograd gives it."""
    found = []

    def record(module, _inputs, kind):
        found.append(module)
        return make_boxed_func(module.forward)

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        args = [torch.empty(sizes, device=device) for device, *sizes in described]
        torch.compile(fn, backend=backend.aot_backend(record), dynamic=False)(*args)
    (module,) = found
    return module


def inputs_of(module):
    return [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]


def captured(fn, *described):
    """(module, graph) of what is traced."""
    module = traced(fn, *described)
    return module, capture(module, lambda _: False)


def ops_of(graph):
    return [node["op"] for node in json.loads(graph)["nodes"]]


def test_a_graph_is_the_same_for_every_device_of_its_kind():
    fn = lambda x: F.relu(x) + torch.arange(4, device=x.device)  # noqa: E731
    modules, graphs = zip(*(captured(fn, (f"cuda:{i}", 3, 4)) for i in range(3)), strict=True)
    assert [devices.graph_device(m).index for m in modules] == [0, 1, 2]
    assert graphs[0] == graphs[1] == graphs[2]
    assert "cuda:" not in graphs[0]


def test_a_graph_is_compiled_for_its_device(monkeypatch):
    asked, kept = [], []

    class Client:
        def __init__(self, *args, **options):
            asked.append((options["target"], options["arch"]))
            kept.append(options["prepare_memory"])

        def compile(self, graph):
            raise kiln_torch._kiln.Error("not here")

    monkeypatch.setattr(program._kiln, "Client", Client)
    program._client_of.cache_clear()
    options = {"arch": "x86-64-v3"}
    for device in ("cpu", "cuda:1"):
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            x = torch.empty(3, 4, device=device)
            torch._dynamo.reset()
            torch.compile(lambda x: x.exp() + 1, backend="kiln", options=options)(x)
    program._client_of.cache_clear()
    assert set(asked) == {("cpp", "x86-64-v3"), ("ptx", "")}
    # Nobody would see a write behind torch's back to what was prepared on a GPU.
    assert kept[0] > 0
    assert kept[-1] == 0


@pytest.mark.parametrize(
    ("arch", "on_cpu", "on_cuda"),
    [("", "", ""), ("native", "native", ""), ("znver4", "znver4", ""), ("sm_90a", "", "sm_90a")],
)
def test_an_architecture_is_one_device_kinds(arch, on_cpu, on_cuda):
    settings = Settings(arch=arch)
    assert (settings.arch_of("cpu"), settings.arch_of("cuda")) == (on_cpu, on_cuda)


def test_numbers_on_the_cpu_come_along():
    module, graph = captured(lambda x, s: (x * s, s), ("cuda", 5), ("cpu",))
    assert devices.graph_device(module) == torch.device("cuda", 0)
    assert devices.cpu_inputs(module) == (1,)
    assert len(json.loads(graph)["inputs"]) == 2


def test_inputs_are_copied_and_handed_on():
    seen = []

    def run(inputs):
        seen.extend(inputs)
        return [inputs[0] * inputs[1], None]

    x, number = torch.ones(3), torch.tensor(2.5, dtype=torch.float64)
    moved = devices.with_inputs_copied(run, (1,), {1: 1}, torch.device("cpu"))
    out, handed_on = moved([x, number])
    assert handed_on is number
    assert seen[1] is not number
    assert seen[1].dtype == torch.float64
    torch.testing.assert_close(out, x * 2.5, check_dtype=False)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]
)
def test_a_number_keeps_its_type_and_value(dtype):
    number = torch.tensor(1).to(dtype)
    copy = devices.on_device(number, torch.device("cpu"))
    assert copy.dtype == dtype
    assert torch.equal(copy, number)
    large = torch.tensor(2**62 + 1)
    assert torch.equal(devices.on_device(large, torch.device("cpu")), large)


def test_what_is_made_on_the_cpu_and_copied_is_made_on_the_gpu():
    def fn(x):
        return x + torch.arange(4).to(x.device) + torch.tensor([1.0, 2, 3, 4]).to(x.device)

    _, graph = captured(fn, ("cuda", 3, 4))
    places = [
        entry["value"]["string"]
        for node in json.loads(graph)["nodes"]
        for entry in node["kwargs"]
        if entry["name"] == "device"
    ]
    assert set(places) == {"cuda"}


def updates_a_number(x, step):
    step.add_(1)
    return x * step, x.exp()


@pytest.mark.parametrize(
    ("fn", "described", "sentence"),
    [
        (lambda x, y: x + y.to(x.device), [("cuda:0", 4), ("cuda:1", 4)], "runs on one GPU"),
        (lambda x: (x.exp(), x.sum().cpu()), [("cuda", 4)], "on the CPU from one on cuda:0"),
        (lambda x: x + torch.rand(4).to(x.device), [("cuda", 4)], "draws random numbers on the CPU"),
        (lambda x: (x.exp(), torch.zeros(3)), [("cuda", 4)], "output .* is on the CPU"),
        (updates_a_number, [("cuda", 4), ("cpu",)], "updates input .* on the CPU"),
        (lambda x: x.exp(), [("xpu", 4)], "compiles for the CPU and CUDA"),
    ],
)
def test_what_mixes_devices_is_refused(fn, described, sentence):
    with pytest.raises(Exception, match=sentence) as caught:
        captured(fn, *described)
    causes = [caught.value]
    while causes[-1] is not None:
        causes.append(causes[-1].__cause__)
    assert any(isinstance(cause, CaptureError) or "CaptureError" in str(cause) for cause in causes)


def there_and_back(x):
    total = x.exp().sum().cpu()
    return x * (total + 1).to(x.device), total.sqrt()


def two_results_on_the_cpu(x):
    least = x.cpu().sort()
    return x.exp(), *least, torch.ones(4).exp()


@pytest.mark.parametrize(
    ("fn", "described"),
    [
        (lambda x, y: x + y.to(x.device), [("cuda", 4), ("cpu", 4)]),
        (lambda x, y: (x + y.to("cuda:0") * 2, y), [("cuda", 4), ("cpu", 4)]),
        (lambda y: y.to("cuda:0").exp(), [("cpu", 4)]),
        (lambda x, y: aten.index(x, [y.long()]), [("cuda", 4), ("cpu", 4)]),
        (lambda x, y: x.index_put((y.long(),), x.exp(), accumulate=True), [("cuda", 4), ("cpu", 4)]),
    ],
)
def test_tensors_of_the_cpu_are_inputs_of_a_gpus_graph(fn, described):
    module, graph = captured(fn, *described)
    assert devices.graph_device(module).type == "cuda"
    values = inputs_of(module)
    on_cpu = [i for i, value in enumerate(values) if value.device.type == "cpu"]
    assert list(devices.cpu_inputs(module)) == on_cpu != []
    assert len(json.loads(graph)["inputs"]) == len(described)


@pytest.mark.parametrize(
    ("fn", "described", "programs"),
    [
        (lambda x: (x.exp(), x.sum().cpu()), [("cuda", 4)], 1),
        (lambda x: x + torch.rand(4).to(x.device), [("cuda", 4)], 1),
        (lambda x: (x.exp(), torch.zeros(3)), [("cuda", 4)], 1),
        (lambda x, y: (x.exp() + y.to("cuda:0"), y + 1, y), [("cuda", 4), ("cpu", 4)], 1),
        (lambda x, y: (aten.index(x, [y.long()]), y.long()), [("cuda", 4), ("cpu", 4)], 1),
        (updates_a_number, [("cuda", 4), ("cpu",)], 1),
        (there_and_back, [("cuda", 4)], 2),
        (two_results_on_the_cpu, [("cuda", 4)], 1),
    ],
)
def test_work_of_the_cpu_is_left_to_torch(fn, described, programs):
    module = traced(fn, *described)
    parts = []

    def compile_part(part, inputs):
        parts.append(capture(part, lambda _: False))  # which none refuses
        return lambda inputs: list(part.forward(*inputs))

    with pytest.raises(CaptureError):
        capture(module, lambda _: False)
    assert can_be_parted(module, eager_random=False, is_refused=True)
    run = Parted(module, compile_part)
    assert len(parts) == programs
    values = inputs_of(module)
    outputs = next(node for node in module.graph.nodes if node.op == "output").args[0]
    with FakeTensorMode(allow_non_fake_inputs=True):
        args = [torch.empty(v.shape, dtype=v.dtype, device=v.device) for v in values]
        given = run(args)
    for value, output in zip(given, outputs, strict=True):
        expected = output.meta["val"]
        assert (value.device, value.dtype, value.shape) == (
            expected.device,
            expected.dtype,
            expected.shape,
        )


def test_what_draws_eagers_numbers_out_of_order_is_not_parted():
    def fn(x, in_order):
        total = x.sum().cpu()
        first = torch.rand(4, device=x.device) if in_order else 0
        chosen = torch.bernoulli((x * total.to(x.device)).sigmoid() + first)
        return chosen, total.exp(), 0 if in_order else torch.rand(4, device=x.device)

    for in_order in (True, False):
        module = traced(lambda x, in_order=in_order: fn(x, in_order), ("cuda", 4))
        assert can_be_parted(module, eager_random=False, is_refused=True) == in_order


def test_a_mixture_runs_eager_and_says_why():
    def fn(x, y):
        return x + y.to(x.device)

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        x, y = torch.empty(4, device="cuda:0"), torch.empty(4, device="cuda:1")
        out = torch.compile(fn, backend="kiln")(x, y)
    assert out.device == x.device
    (fallback,) = kiln_torch.stats()["fallbacks"]
    assert re.search(r"a graph runs on one GPU", fallback["reason"])


def test_random_operators_are_the_gpus_own():
    def fn(x):
        return F.dropout(x, 0.5) + torch.rand(4, device="cuda")

    _, graph = captured(fn, ("cuda", 3, 4))
    ops = ops_of(graph)
    assert "aten.native_dropout.default" in ops
    assert "aten.rand.default" in ops
    assert "kiln_seed" not in graph
    assert "aten.randint.low" not in ops  # which draws the seed of a CPU's graph


def test_what_libraries_do_better_stays_whole():
    def fn(x, w, v):
        y = torch.baddbmm(x, x, x)
        return y, torch.mv(w, v), x.topk(2), x.sort(), F.max_pool2d(x, 2)

    _, graph = captured(fn, ("cuda", 2, 4, 4), ("cuda", 4, 4), ("cuda", 4))
    whole = {"aten.baddbmm.default", "aten.mv.default", "aten.topk.default", "aten.sort.default"}
    assert whole <= set(ops_of(graph))
    assert any(op.startswith("aten.max_pool2d_with_indices") for op in ops_of(graph))
    assert aten.cudnn_batch_norm.default in decompositions("cuda")
    assert aten.cudnn_batch_norm.default not in decompositions()


def test_attention_is_not_computed_again_for_a_gpu(monkeypatch):
    called = []
    monkeypatch.setattr(recompute, "compute_scores_again", lambda _: called.append("scores"))
    monkeypatch.setattr(recompute, "min_cut_rematerialization_partition", lambda *a, **k: None)
    for device in ("cpu", "cuda"):
        graph = torch.fx.Graph()
        x = graph.placeholder("primals_1")
        with FakeTensorMode():
            x.meta["val"] = torch.empty(3, device=device)
        graph.output((x,))
        recompute.partition(torch.fx.GraphModule({}, graph), [], keep_random=False)
        assert called == ["scores"]


def test_attention_reads_its_random_state_where_it_was_drawn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    for op, names in _STATE_ON_CPU.items():
        schema = [p.name for p in op._schema.arguments if not p.kwarg_only]

        def arguments(probability, schema=schema, names=names):
            made = {"dropout_p": probability}
            made |= {name: torch.empty((), device="meta") for name in names}
            return [made.get(name) for name in schema]

        capturing = False
        args = arguments(0.0)
        assert _with_state_on_cpu(op, args, names) is args
        with pytest.raises(NotImplementedError):  # the copy: a meta tensor has no number
            _with_state_on_cpu(op, arguments(0.1), names)
        capturing = True
        args = arguments(0.1)
        assert _with_state_on_cpu(op, args, names) is args


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to check")
def test_the_check_of_a_gpu_says_that_there_is_none():
    script = pathlib.Path(__file__).parents[1] / "gpu" / "check.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 77
    assert "no CUDA device" in done.stdout
    wrong = subprocess.run([sys.executable, script, "nothing"], capture_output=True, timeout=120)
    assert wrong.returncode == 2
