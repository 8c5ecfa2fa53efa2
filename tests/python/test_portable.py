"""The pack of the preset `portable` in one process with torch, grpcio and protobuf, which bring their own
copies of what is linked into it."""

import os
import subprocess
import sys

import pytest

import portable_pack
from conftest import Server

pytest.importorskip("grpc_health.v1.health_pb2_grpc")

# Argument: modules to import, in this order. What is compared with eager runs in between calls of grpcio,
# to one server of the pack.
PROCESS = """
import importlib, os, sys

for name in sys.argv[1:]:
    importlib.import_module(name)

import grpc, torch, kiln_torch
from google.protobuf import json_format, struct_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

def healthy():
    with grpc.insecure_channel(os.environ["KILN_SERVER"]) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING

healthy()
model = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.GELU(), torch.nn.LayerNorm(48))
compiled = torch.compile(model, backend="kiln", options={"fallback": "raise"})
x = torch.randn(16, 24)
torch.testing.assert_close(compiled(x), model(x))
healthy()
# Errors cross the border as exceptions of Python.
try:
    nowhere = {"server": "127.0.0.1:1", "fallback": "raise", "timeout_s": 1}
    torch._dynamo.reset()
    torch.compile(model, backend="kiln", options=nowhere)(torch.randn(5, 24))
    raise SystemExit("a server that is not there compiled")
except Exception as error:
    assert "127.0.0.1:1" in str(error), error
message = struct_pb2.Struct()
json_format.ParseDict({"a": [1, {"b": None}]}, message)
assert json_format.MessageToDict(struct_pb2.Struct.FromString(message.SerializeToString()))["a"][0] == 1
torch.testing.assert_close(compiled(x), model(x))
assert kiln_torch.stats()["compiles"] + kiln_torch.stats()["hits"]["server"] >= 1, kiln_torch.stats()
maps = open("/proc/self/maps").read()
print("libkiln", next(line.split()[-1] for line in maps.splitlines() if "libkiln.so" in line))
"""


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    try:
        return portable_pack.unpack(tmp_path_factory.mktemp("pack"))
    except portable_pack.Absent as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def pack_server(pack, tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("kilnd-pack") / "data", program=pack / "bin" / "kilnd")
    yield running
    assert running.stop() == 0


@pytest.mark.parametrize(
    "order",
    [
        ["torch", "grpc", "google.protobuf.message", "kiln_torch"],
        ["kiln_torch", "google.protobuf.message", "grpc", "torch"],
    ],
    ids=["kiln last", "kiln first"],
)
def test_it_lives_with_others_copies_of_its_libraries(pack, pack_server, order):
    environment = {
        **os.environ,
        "PYTHONPATH": str(pack / "python"),
        "KILN_SERVER": pack_server.address,
    }
    command = [sys.executable, "-c", PROCESS, *order]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == str(pack / "lib" / "libkiln.so.0")
