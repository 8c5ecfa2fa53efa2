"""Compiled graphs in torch's caches: what a second process takes from there, and what it does not.

Each test has a cache folder of its own. After torch._dynamo.reset() a call finds what a second process
would; some look at that with one.
"""

import os
import pathlib
import pickle
import stat
import subprocess
import sys
import textwrap

import pytest
import torch
from compare import assert_same
from torch._dynamo.utils import counters

import kiln_torch
from kiln_torch import backend, stored
from kiln_torch.settings import SECRET, Settings

HERE = pathlib.Path(__file__).parent


def again(fn, *args, **options):
    """The second process' first call: its result, and how often torch's cache answered."""
    torch._dynamo.reset()
    kiln_torch.reset()
    counters.clear()
    result = torch.compile(fn, backend="kiln", **options)(*args)
    return result, counters["aot_autograd"]["autograd_cache_hit"]


def entries():
    return [p.read_bytes() for p in pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*")
            if p.is_file() and "aotautograd" in str(p)]  # fmt: skip


def model():
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 3)
    )


def test_inference_is_captured_once():
    net, x = model().eval(), torch.randn(5, 8)
    with torch.no_grad():
        expected = net(x)
        assert_same(again(net, x)[0], expected)
        result, hits = again(net, x)
    assert_same(result, expected)
    assert hits == 1
    stats = kiln_torch.stats()
    assert stats["capture_ms"] == [] and stats["fallbacks"] == []
    assert stats["compiles"] == 0 and stats["run_calls"] == 1


def test_training_is_captured_once_and_updates_its_buffers():
    def step(net, x, call):
        net.zero_grad()
        loss = call(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        return [p.grad.clone() for p in net.parameters()] + [b.clone() for b in net.buffers()]

    torch.manual_seed(3)
    eager, x = model(), torch.randn(5, 8)
    first, second = model(), model()
    first.load_state_dict(eager.state_dict())
    second.load_state_dict(eager.state_dict())
    expected = step(eager, x, eager)
    for net, hits in ((first, 0), (second, 1)):
        torch._dynamo.reset()
        kiln_torch.reset()
        counters.clear()
        for ours, theirs in zip(step(net, x, torch.compile(net, backend="kiln")), expected, strict=True):
            assert_same(ours, theirs)
        assert counters["aot_autograd"]["autograd_cache_hit"] == hits
    stats = kiln_torch.stats()
    assert stats["capture_ms"] == [] and stats["run_calls"] == 3 and stats["fallbacks"] == []


def test_a_backward_graph_that_nobody_runs_costs_no_program():
    net, x = model().eval(), torch.randn(5, 8)
    torch.compile(net, backend="kiln")(x)
    assert kiln_torch.stats()["graphs"] == 1


def test_symbolic_sizes_and_floats():
    def fn(x, scale):
        return x * scale / x.shape[0] + x.shape[1]

    xs = [torch.randn(n, 6) for n in (4, 7, 9)]
    for x in xs:
        assert_same(again(fn, x, 0.37, dynamic=True)[0], fn(x, 0.37))
    result, hits = again(fn, xs[1], 0.41, dynamic=True)
    assert_same(result, fn(xs[1], 0.41))
    assert hits == 1 and kiln_torch.stats()["run_calls"] == 1


@pytest.mark.parametrize("fn", [
    # One operator takes the float as a tensor, the other as a number that is the graph's own.
    lambda x, factor: (x * factor, torch.add(x, x.exp(), alpha=factor)),
    lambda x, factor: (x * factor, torch.full((2,), factor) + x[0, :2]),
    lambda x, factor: (x * factor, factor * x.shape[0]),
    # Dynamo itself needs a number.
    lambda x, factor: (x * factor, torch.quantile(x, min(factor, 1.0))),
    lambda x, factor: (x * factor, torch.nn.functional.interpolate(x[None], scale_factor=1.0 + int(factor * 2))),
])  # fmt: skip
def test_a_float_that_is_part_of_a_graph_is_not_taken_for_another(fn):
    x = torch.randn(4, 3, requires_grad=True)
    for dynamic in (None, True, True):
        torch._dynamo.reset()
        compiled = torch.compile(fn, backend="kiln", dynamic=dynamic)
        for factor in (0.5, 0.25, 2.0, 3.0, 0.5):
            outputs, expected = compiled(x, factor), fn(x, factor)
            assert_same(outputs, expected)
            ours, theirs = (sum(o.sum() for o in outs if isinstance(o, torch.Tensor)) for outs in (outputs, expected))
            assert_same(torch.autograd.grad(ours, x), torch.autograd.grad(theirs, x))


@pytest.mark.parametrize("dynamic", [True, None])
def test_a_float_of_a_module_that_each_call_changes_is_not_taken_for_another(dynamic):
    class Decaying(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.weight = 1.0, torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            self.scale = self.scale * 0.5
            return self.weight * x * self.scale

    x = torch.randn(4, 3)
    for _ in range(2):
        torch._dynamo.reset()
        eager, ours = Decaying(), Decaying()
        compiled = torch.compile(ours, backend="kiln", dynamic=dynamic)
        for _ in range(4):
            assert_same(compiled(x), eager(x))
            assert ours.scale == eager.scale


def test_sizes_in_lists_of_a_graph_that_is_read_again():
    """No tensor says there that a call is of the graph."""

    def fn(x):
        rows = x.size(0)
        grid = torch.full((2, rows, rows + 1), 2.0) + torch.ones(rows, 1)
        return (x.exp().sum() * grid).mean(), torch.zeros(rows, 3, dtype=torch.int64)

    for size in (5, 7):
        x = torch.randn(size, 4, requires_grad=True)
        expected = fn(x)
        gradient = torch.autograd.grad(expected[0], x)
        for hit in (False, True):
            result, hits = again(fn, x, dynamic=True, options={"fallback": "raise"})
            assert_same(result, expected)
            assert_same(torch.autograd.grad(result[0], x), gradient)
            assert hits > 0 or not hit


def test_another_range_of_sizes_is_another_entry():
    def fn(x):
        return x.sum(0)

    for most in (16, 64, 64):
        x = torch.randn(12, 6)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=most)
        result, hits = again(fn, x)
        assert_same(result, fn(x))
    assert hits == 1
    x = torch.randn(12, 6)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=32)
    assert again(fn, x)[1] == 0


def test_random_numbers_are_those_of_the_option():
    def fn(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.randn(64, 64)
    again(fn, x)
    torch.manual_seed(5)
    expected = fn(x)
    torch.manual_seed(5)
    result, hits = again(fn, x, options={"fallback_random": True})
    assert hits == 0
    assert_same(result, expected)
    torch.manual_seed(5)
    result, hits = again(fn, x, options={"fallback_random": True})
    assert hits == 1
    assert_same(result, expected)
    torch.manual_seed(5)
    ours, hits = again(fn, x)
    assert hits == 1
    assert not torch.equal(ours, expected)  # Kiln's own, as without that option


# Another value of every option that a graph may depend on.
OTHER = {
    "arch": "x86-64-v2",
    "libraries": "none",
    "device": "gcu-16m",
    "mode": "reduce-overhead",
    "fallback_random": True,
}


def test_every_option_of_a_graph_is_flipped_here():
    assert set(OTHER) | {"check"} == set(Settings.read({}).of_graph())


@pytest.mark.parametrize("name", OTHER)
def test_an_entry_is_of_its_options(name):
    def fn(x):
        return torch.relu(x) * 3

    x = torch.randn(9)
    again(fn, x)
    assert again(fn, x)[1] == 1
    assert again(fn, x, options={name: OTHER[name]})[1] == 0
    assert again(fn, x)[1] == 1


@pytest.mark.parametrize("changed", ["package", "attention", "precision"])
def test_an_entry_is_of_its_kiln_and_of_torchs_settings(changed, monkeypatch):
    def fn(x):
        return torch.relu(x) * 3

    x = torch.randn(9)
    with torch.no_grad():
        again(fn, x)
    if changed == "package":
        monkeypatch.setattr(stored, "_package_digest", lambda: "another version")
    elif changed == "attention":
        monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: False)
    elif changed == "precision":
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    with torch.no_grad():
        result, hits = again(fn, x)
    assert hits == 0
    assert_same(result, fn(x))


def test_how_a_program_is_come_by_is_none_of_a_graphs(server):
    def fn(x):
        return torch.relu(x) * 3

    x = torch.randn(9)
    again(fn, x)
    options = {"server": server.address, "threads": 1, "timeout_s": 9, "tenant": "other"}
    assert again(fn, x, options=options)[1] == 1


def test_a_check_takes_nothing_from_there():
    def fn(x):
        return torch.relu(x) * 3

    x = torch.randn(9)
    again(fn, x)
    assert again(fn, x, options={"check": True})[1] == 0
    assert kiln_torch.stats()["checks"] == {"graphs": 1, "calls": 1, "differences": 0}


def test_a_program_that_is_gone_is_compiled_again(tmp_path):
    from conftest import Server

    def fn(x):
        return torch.relu(x) * 3.25

    x = torch.randn(9)
    again(fn, x)
    other = Server(tmp_path / "data")
    try:
        result, hits = again(fn, x, options={"server": other.address})
    finally:
        other.stop()
    assert_same(result, fn(x))
    assert hits == 1 and kiln_torch.stats()["compiles"] == 1


def test_without_a_server_the_kept_graph_runs_eager():
    net, x = model().eval(), torch.randn(5, 8)
    with torch.no_grad():
        again(net, x)
        with pytest.warns(UserWarning, match="runs in eager mode"):
            result, hits = again(net, x, options={"server": "127.0.0.1:1", "timeout_s": 1})
        assert_same(result, net(x))
    assert hits == 1 and len(kiln_torch.stats()["fallbacks"]) == 1


def test_without_a_server_random_numbers_are_drawn_in_each_call():
    """No argument says there that a call is of the graph."""

    def fn(x):
        return x + torch.rand(3), torch.randn(2)

    x = torch.ones(3)
    again(fn, x)
    torch._dynamo.reset()
    kiln_torch.reset()
    compiled = torch.compile(fn, backend="kiln", options={"server": "127.0.0.1:1", "timeout_s": 1})
    with pytest.warns(UserWarning, match="runs in eager mode"):
        compiled(x)
    for function in (fn, compiled):
        torch.manual_seed(5)
        results = [function(x) for _ in range(2)]
        if function is fn:
            expected = results
    assert_same(results, expected)


def test_progressive_mode_awaits_the_program_of_a_kept_graph():
    def fn(x):
        return torch.relu(x) * 3

    x = torch.randn(9)
    for hits in (0, 1):
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(fn, backend="kiln", mode="progressive")
        assert_same(compiled(x), fn(x))
        assert counters["aot_autograd"]["autograd_cache_hit"] == hits
        assert_same(compiled(x), fn(x))


def test_what_torchs_key_does_not_cover_is_not_kept():
    with torch.library._scoped_library("stored_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")

        def fn(x):
            return torch.ops.stored_test.twice(x)

        x = torch.randn(9)
        again(fn, x)
        assert again(fn, x)[1] == 0
    assert entries() == []


def test_a_folder_that_others_write_to_is_not_read(caplog):
    def fn(x):
        return torch.relu(x) * 3

    folder = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    x = torch.randn(9)
    again(fn, x)
    folder.chmod(folder.stat().st_mode | stat.S_IWOTH)
    stored._trusts.cache_clear()
    assert_same(again(fn, x)[0], fn(x))
    assert counters["aot_autograd"]["autograd_cache_hit"] == 0
    assert [r.getMessage() for r in caplog.records if "not this user's alone" in r.getMessage()]


def test_a_torch_that_is_not_known_captures_in_every_process(monkeypatch, caplog):
    def fn(x):
        return torch.relu(x) * 3

    monkeypatch.setattr(backend, "_TORCH_WITH_KNOWN_CACHES", ("2.99.",))
    backend.torch_caches.cache_clear()
    x = torch.randn(9)
    try:
        for _ in range(2):
            result, hits = again(fn, x)
            assert_same(result, fn(x))
            assert hits == 0
    finally:
        backend.torch_caches.cache_clear()
    lines = [r.getMessage() for r in caplog.records if "not kept for other processes" in r.getMessage()]
    assert len(lines) == 1 and entries() == []


def test_secrets_are_in_no_entry():
    def fn(x):
        return torch.relu(x) * 3

    again(fn, torch.randn(9), options={"token": "a-secret-of-the-test", "server": "http://127.0.0.1:1",
                                       "timeout_s": 1})  # fmt: skip
    found = entries()
    assert found and not any(b"a-secret-of-the-test" in content for content in found)
    assert "token" in SECRET


def test_an_entry_of_another_kiln_is_refused_by_name(monkeypatch):
    def fn(x):
        return torch.relu(x) * 3

    again(fn, torch.randn(9))
    (content,) = entries()
    pickle.loads(content)
    monkeypatch.setattr(stored, "_package_digest", lambda: "another version")
    with pytest.raises(stored.StaleEntry, match="another version of Kiln"):
        pickle.loads(content)


# A module of the user's, run twice: by precompile, with what save_cache_artifacts gives, or with
# aot_compile. Prints whether Dynamo and Kiln had work to do.
PROGRAM = textwrap.dedent(
    """
    import sys, torch, kiln_torch
    from torch._dynamo.utils import counters

    how, path = sys.argv[1:]

    def fn(x, w):
        return torch.nn.functional.gelu(x @ w).sum(-1)

    torch.manual_seed(0)
    x, w = torch.randn(5, 8), torch.randn(8, 3, requires_grad=True)
    if how.startswith("precompile"):
        torch._dynamo.config.caching_precompile = True
    if how == "artifacts-load":
        with open(path, "rb") as file:
            torch.compiler.load_cache_artifacts(file.read())
    if how == "aot-save":
        compiled = torch.compile(fn, backend="kiln", fullgraph=True).aot_compile(((x, w), {}))
        compiled.save_compiled_function(path)
    elif how == "aot-load":
        with open(path, "rb") as file:
            compiled = torch.compiler.load_compiled_function(file)
    else:
        compiled = torch.compile(fn, backend="kiln")
    out = compiled(x, w)
    out.sum().backward()
    grad, w.grad = w.grad, None
    expected = fn(x, w)
    expected.sum().backward()
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(grad, w.grad)
    if how == "precompile-save":
        torch.compiler.save_cache_artifacts()
    if how == "artifacts-save":
        with open(path, "wb") as file:
            file.write(torch.compiler.save_cache_artifacts()[0])
    stats = kiln_torch.stats()
    traced = counters["stats"]["calls_captured"]
    print(traced, len(stats["capture_ms"]), stats["run_calls"], len(stats["fallbacks"]))
    """
)


@pytest.mark.parametrize("how", ["precompile", "artifacts", "aot"])
def test_a_second_process(how, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found = []
    for step in ("save", "load"):
        if how == "artifacts":  # what is loaded comes with the file alone
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / step)
        command = [sys.executable, str(program), f"{how}-{step}", str(tmp_path / "kept")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append([int(part) for part in done.stdout.split()])
    first, second = found
    assert first[0] > 0 and first[1:] == [2, 2, 0]
    assert second[1:] == [0, 2, 0]
    assert (second[0] == 0) == (how != "artifacts")


# Functions of one module, of which a process finds some among what others have kept.
SEVERAL = textwrap.dedent(
    """
    import sys, torch, kiln_torch
    from torch._dynamo.utils import counters

    torch._dynamo.config.caching_precompile = True

    def shared(x):
        return torch.relu(x) * 3

    class Model(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner = torch.nn.Linear(width, width)

        def forward(self, x):
            return shared(self.inner(x))

    def call(model, x):
        return model(x)

    for width in map(int, sys.argv[1:]):
        torch.manual_seed(width)
        model, x = Model(width), torch.randn(3, width)
        options = {"guard_filter_fn": torch.compiler.keep_portable_guards_unsafe}
        with torch.no_grad():
            found = torch.compile(call, backend="kiln", options=options, dynamic=False)(model, x)
            torch.testing.assert_close(found, call(model, x))
        print(counters["stats"]["calls_captured"])
    torch.compiler.save_cache_artifacts()
    """
)


def test_what_precompile_has_loaded_does_not_keep_others_from_being_compiled(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(SEVERAL)
    traced = []
    for widths in (["4"], ["8"], ["4", "16", "8"]):
        command = [sys.executable, str(program), *widths]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        traced.append([int(line) for line in done.stdout.split()])
    assert traced[0] == traced[1] and traced[0][0] > 0
    assert traced[2][0] == 0 and traced[2][1] > 0  # the first is found, the second is not


CODE_GENERATORS = """
import sys, torch
from torch._dynamo.utils import counters
from torch._inductor.codegen.common import get_scheduling_for_device
from torch._inductor import codecache

with torch.no_grad():
    torch.compile(torch.relu, backend="kiln")(torch.ones(3))
print(counters["aot_autograd"]["autograd_cache_miss"])  # so there was a key
print(get_scheduling_for_device("cpu") is None, "torch._inductor.lowering" in sys.modules)
codecache.init_backend_registration()  # as Inductor's own keys ask for them
print(get_scheduling_for_device("cpu") is None)
"""


def test_a_key_imports_no_code_generators_and_others_get_them():
    command = [sys.executable, "-c", CODE_GENERATORS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["1", "True", "False", "False"]
