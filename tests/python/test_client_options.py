"""fail_on_miss, the local cache and several servers, as a user of torch.compile sees them."""

import re
import socket
import subprocess
import sys
import time
import warnings

import pytest
import torch
from compare import assert_same
from conftest import BUILD, Server

import kiln_torch
from kiln_torch import program
from kiln_torch.settings import Settings


def run(fn, *args, **options):
    torch._dynamo.reset()
    return torch.compile(fn, backend="kiln", options=options)(*args)


def forget():
    kiln_torch.reset()
    torch._dynamo.reset()


def test_a_job_that_must_not_compile_gets_a_typed_error():
    def fn(x):
        return (x * 1.75).sin() - 4

    x = torch.randn(5)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="fail_on_miss") as raised:
        run(fn, x, fail_on_miss=True)
    assert isinstance(raised.value.inner_exception, kiln_torch.CacheMiss)
    assert kiln_torch.stats()["fallbacks"] == []
    run(fn, x)
    forget()
    assert_same(run(fn, x, fail_on_miss=True), fn(x))
    assert kiln_torch.stats()["hits"]["server"] == 1


@pytest.mark.parametrize("value, meant", [("1", True), ("true", True), ("0", False), ("", False)])
def test_fail_on_miss_in_the_environment(monkeypatch, value, meant):
    monkeypatch.setenv("KILN_FAIL_ON_MISS", value)
    assert Settings.read({}).fail_on_miss is meant


def test_a_wrong_fail_on_miss_is_named():
    with pytest.raises(ValueError, match="fail_on_miss is 'perhaps'; expected bool"):
        Settings.read({"fail_on_miss": "perhaps"})


def test_a_restart_without_a_server_runs_from_the_local_cache(tmp_path):
    def fn(x):
        return torch.softmax(x, -1) * 1.5

    x = torch.randn(4, 9)
    own = Server(tmp_path / "data")
    options = {"server": own.address, "local_cache": f"{tmp_path / 'cache'}:64MiB"}
    run(fn, x, **options)
    assert kiln_torch.stats()["hits"]["local"] == 0
    forget()
    run(fn, x, **options)
    assert kiln_torch.stats()["hits"] == {"memory": 0, "local": 1, "server": 0}
    assert own.stop() == 0
    forget()
    # Another client, as another process would have it.
    assert_same(run(fn, x, timeout_s=60.0, **options), fn(x))
    stats = kiln_torch.stats()
    assert stats["hits"]["local"] == 1 and stats["fallbacks"] == []


def test_the_second_server_answers_where_the_first_is_away(server):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for i in range(4):
        x = torch.randn(3, 4 + i)
        assert_same(run(lambda v: v * 2.5 + 1, x, server=f"127.0.0.1:{port},{server.address}"),
                    x * 2.5 + 1)
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["graphs"] == 4


def test_a_silent_server_costs_its_time_limit_once():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i in range(5):
                x = torch.randn(2, 3 + i)
                assert_same(run(lambda v: v + 1, x, server=address, timeout_s=1.0), x + 1)
        took = time.monotonic() - start
    print(f"5 graphs, a silent server, timeout_s 1: {took:.1f} s")
    assert len(kiln_torch.stats()["fallbacks"]) == 5
    assert took < 8


def test_kernels_for_an_older_cpu_run_here():
    def fn(x):
        return torch.softmax(x * 2.25, -1)

    x = torch.randn(6, 70)
    for arch in ("x86-64-v3", "x86-64", ""):
        forget()
        assert_same(run(fn, x, arch=arch, fallback="raise"), fn(x))
        assert kiln_torch.stats()["compiles"] == 1, arch  # each is another artifact
    forget()
    run(fn, x, arch="x86-64-v3", fallback="raise")
    assert kiln_torch.stats()["hits"]["server"] == 1
    forget()
    with pytest.raises(ValueError, match="unknown CPU 'x87-64'; known are native, x86-64, "):
        torch.compile(fn, backend="kiln", options={"arch": "x87-64"})


def test_no_step_is_left_to_torch_where_none_may_be():
    def fn(x):
        return torch.linalg.inv_ex(x)[0] + 1

    x = torch.eye(5) * 2 + torch.rand(5, 5) / 8
    assert_same(run(fn, x, fallback="raise"), fn(x))
    assert kiln_torch.stats()["steps"]["library"] == 1
    forget()
    with pytest.raises(Exception, match="linalg_inv_ex"):
        run(fn, x, fallback="raise", libraries="none")
    forget()
    assert_same(run(lambda x: torch.relu(x @ x), x, fallback="raise", libraries="none"), torch.relu(x @ x))
    assert kiln_torch.stats()["steps"]["library"] == 0


WRONG = {
    "nope": ({"options": {"nope": 1}}, "kiln has no option 'nope'; it has: arch, check, "),
    "libraries": ({"options": {"libraries": "some"}}, "libraries is 'some'; expected 'torch' or 'none'"),
    "mode": ({"mode": "progresive"}, "no mode 'progresive'; modes are 'blocking', 'progressive'"),
    "number": ({"options": {"timeout_s": "soon"}}, "timeout_s is 'soon'; expected float"),
    "priority": ({"options": {"priority": "high"}}, "expected 'interactive' or 'warmup'"),
    "server": ({"options": {"server": "here"}}, "expected HOST:PORT, as in"),
    "scheme": ({"options": {"server": "ftp://here:1"}}, "expected http:// or https:// or"),
    "cache": ({"options": {"local_cache": "/etc"}}, "name a folder that is new"),
    "token": ({"options": {"token": "a b"}}, "1 to 4096 printable characters"),
    "key": ({"options": {"public_key": "rsa:1"}}, "as in ed25519:"),
}


@pytest.mark.parametrize("which", WRONG)
def test_wrong_settings_are_errors_of_torch_compile(which):
    given, text = WRONG[which]
    with pytest.raises(ValueError, match=re.escape(text)):
        torch.compile(torch.relu, backend="kiln", **given)


def test_so_they_are_in_a_process_that_has_not_used_kiln():
    text = "import torch; torch.compile(torch.relu, backend='kiln', mode='progresive')"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert "ValueError: kiln knows no mode 'progresive'" in done.stderr.splitlines()[-1]


def test_a_wrong_variable_is_an_error_of_torch_compile(monkeypatch):
    monkeypatch.setenv("KILN_PRIORITY", "high")
    program._client_of.cache_clear()  # a process reads its environment once
    with pytest.raises(ValueError, match="expected 'interactive' or 'warmup'"):
        torch.compile(torch.relu, backend="kiln")


def test_modes_of_torchinductors_that_have_no_effect():
    x = torch.randn(5)
    assert_same(torch.compile(torch.relu, backend="kiln", mode="lite")(x), x.relu())
    assert kiln_torch.stats()["run_calls"] == 1


def test_a_function_that_fell_back_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("kiln_torch.progressive._PAUSES", (0.05, 0.2))
    fn = torch.nn.functional.softplus
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = {"server": f"127.0.0.1:{port}", "timeout_s": 2}
    compiled = torch.compile(fn, backend="kiln", dynamic=True, options=options)
    with pytest.warns(UserWarning, match="runs in eager mode"):
        assert_same(compiled(torch.ones(3, 5)), fn(torch.ones(3, 5)))
    stats = kiln_torch.stats()
    assert stats["away"] == {"trying": 1, "recovered": 0, "given_up": []}
    assert len(stats["fallbacks"]) == 1 and stats["run_calls"] == 0
    own = Server(tmp_path / "data", f"--listen=127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + 60
        while kiln_torch.stats()["run_calls"] == 0 and time.monotonic() < deadline:
            x = torch.randn(4, 7)
            assert_same(compiled(x), fn(x))
            time.sleep(0.05)
    finally:
        own.stop()
    stats = kiln_torch.stats()
    assert stats["away"] == {"trying": 0, "recovered": 1, "given_up": []}
    assert stats["run_calls"] > 0 and stats["graphs"] == 1


@pytest.mark.parametrize("train", [False, True])
def test_saved_graphs_warm_a_cache_for_a_job_that_must_not_compile(train, tmp_path, server):
    net = torch.nn.Sequential(torch.nn.Linear(9, 5), torch.nn.Hardtanh(), torch.nn.Linear(5, 11))
    x = torch.randn(3, 9)

    def fn(x):  # with a library step
        return torch.linalg.qr(net(x)).R * 1.125

    for path in kiln_torch.save_graph(fn, (x,), tmp_path / "warm.kgraph", train=train):
        command = [BUILD / "bin" / "kiln", "compile", path, "--server", server.address]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    forget()
    with torch.set_grad_enabled(train):
        result = run(fn, x, fail_on_miss=True)
        assert_same(result, fn(x))
    if train:
        result.sum().backward()
    stats = kiln_torch.stats()
    assert stats["hits"]["server"] == 1 + train and stats["fallbacks"] == []
    assert stats["steps"]["library"] > 0


def test_explain_and_run_compile_what_a_saved_graph_asked_for(tmp_path, server):
    net = torch.nn.Sequential(torch.nn.Linear(70, 50), torch.nn.Tanh()).eval()
    (path,) = kiln_torch.save_graph(net, (torch.randn(30, 70),), tmp_path / "net.kgraph")

    def kiln(*command):
        command = [BUILD / "bin" / "kiln", command[0], path, *command[1:], "--server", server.address]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "read in place" in kiln("explain")
    # One step packs the weight, another one multiplies; of those only the latter is in every run.
    assert re.search(r"^steps +1,", kiln("run", "--profile", "2"), re.MULTILINE)
