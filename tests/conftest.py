"""Starts one real kilnd for all Python tests, on free ports and in a folder of its own."""

import os

import pytest
import torch
from kilnd import BUILD as BUILD
from kilnd import Server as Server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("kilnd") / "data")
    os.environ["KILN_SERVER"] = running.address
    yield running
    assert running.stop() == 0


@pytest.fixture(autouse=True)
def fresh(server, tmp_path_factory, monkeypatch):
    import kiln_torch

    # What torch keeps of compiled graphs is of this test alone.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))
    torch.manual_seed(0)
    torch._dynamo.reset()
    kiln_torch.reset()
    os.environ["KILN_SERVER"] = server.address
    yield
