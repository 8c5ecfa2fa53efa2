"""Saved graphs carry their module's names, and `kiln run --weights` takes what safetensors wrote."""

import json
import subprocess

import kiln_torch
import numpy as np
import pytest
import torch
from conftest import BUILD
from kiln_torch import _kiln

safetensors = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")


def kiln(server, *arguments, code=0):
    command = [BUILD / "bin" / "kiln", *arguments, "--server", server.address]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def run_and_expect(server, graph, weights, inputs, expected, tmp_path):
    """Runs the graph and compares with what eager gave; returns the notes."""
    np.savez(tmp_path / "inputs.npz", **{name: value.numpy() for name, value in inputs.items()})
    np.savez(tmp_path / "expected.npz", output_0=expected.detach().numpy())
    flags = [part for path in weights for part in ("--weights", path)]
    done = kiln(server, "run", graph, *flags, "--inputs", tmp_path / "inputs.npz",
                "--expect", tmp_path / "expected.npz")  # fmt: skip
    assert "equal the reference" in done.stdout
    return done.stderr


def names_of(server, graph):
    listed = json.loads(kiln(server, "explain", graph, "--json").stdout)["program"]["inputs"]
    return [tuple(entry.get("module_names", ())) for entry in listed]


def small_bert():
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=24, return_dict=False,
    )  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def test_a_transformers_model_runs_with_its_own_weights(server, tmp_path):
    model = small_bert()
    ids = torch.randint(0, 50, (2, 9))
    (graph,) = kiln_torch.save_graph(model, (ids,), tmp_path / "bert.kgraph")
    model.save_pretrained(tmp_path / "saved")
    listed = names_of(server, graph)
    name = "encoder.layer.0.attention.self.query.weight"
    assert (name,) in listed and ("input_ids",) in listed
    assert name in kiln(server, "explain", graph).stdout
    with torch.no_grad():
        expected = model(ids)[0]
    # Buffers that a model does not save are not in its file either.
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    safetensors.save_file(buffers, tmp_path / "buffers.safetensors")
    weights = [tmp_path / "saved" / "model.safetensors", tmp_path / "buffers.safetensors"]
    notes = run_and_expect(server, graph, weights, {"input_ids": ids}, expected, tmp_path)
    assert "stay random" not in notes
    # The expectation does see the weights: without them the result is another.
    failed = kiln(server, "run", graph, "--inputs", tmp_path / "inputs.npz",
                  "--expect", tmp_path / "expected.npz", code=1)  # fmt: skip
    assert "wrong result" in failed.stderr and "stay random" in failed.stderr


def test_a_tied_weight_has_all_of_its_names(server, tmp_path):
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, use_cache=False,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 40, (1, 7))
    (graph,) = kiln_torch.save_graph(model, (ids,), tmp_path / "gpt2.kgraph")
    assert ("transformer.wte.weight", "lm_head.weight") in names_of(server, graph)
    expected = model(ids).logits
    for kept in ("transformer.wte.weight", "lm_head.weight"):
        tensors = {name: value.clone() for name, value in model.state_dict().items()}
        tied = {"transformer.wte.weight", "lm_head.weight"}
        (left_out,) = tied - {kept}
        del tensors[left_out]
        path = tmp_path / f"{kept}.safetensors"
        safetensors.save_file(tensors, path)
        run_and_expect(server, graph, [path], {"input_ids": ids}, expected, tmp_path)
    both = {name: value.clone() for name, value in model.state_dict().items()}
    both["lm_head.weight"] += 1
    safetensors.save_file(both, tmp_path / "both.safetensors")
    failed = kiln(server, "run", graph, "--weights", tmp_path / "both.safetensors", code=2)
    assert "differ; the graph has them as one" in failed.stderr


class Buffers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(6)
        self.last = torch.nn.Linear(6, 4, bias=False)
        self.register_buffer("shift", torch.randn(4), persistent=False)

    def forward(self, image):
        return self.last(self.norm(image).mean((2, 3))) + self.shift


def test_buffers_and_what_is_left_to_chance(server, tmp_path):
    model, image = Buffers(), torch.randn(3, 6, 5, 5)
    model(image)  # moves the running statistics
    model.eval()
    (graph,) = kiln_torch.save_graph(model, (image,), tmp_path / "graph.kgraph")
    safetensors.save_file({"shift": model.shift}, tmp_path / "more.safetensors")
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    weights = [tmp_path / "model.safetensors", tmp_path / "more.safetensors"]
    notes = run_and_expect(server, graph, weights, {"image": image}, model(image), tmp_path)
    assert "1 tensor of" in notes and "norm.num_batches_tracked" in notes
    safetensors.save_file({"shift": model.shift, "shfit": model.shift.clone()}, tmp_path / "typo.safetensors")
    notes = kiln(server, "run", graph, "--weights", tmp_path / "typo.safetensors").stderr
    assert "belong to no input of the graph: shfit" in notes
    assert "6 inputs of the graph stay random" in notes


@pytest.mark.parametrize("layout", ["transposed", "updated"])
def test_layouts_and_updates(server, tmp_path, layout):
    """A weight that the graph reads in another order is copied; one that it writes stays as the file
    has it."""

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5, 3).t(), requires_grad=False)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            if layout == "updated":
                self.seen += x.sum(0)
            return x @ self.weight + self.seen.sum()

    model, x = Module(), torch.randn(4, 3)
    state = {name: value.contiguous().clone() for name, value in model.state_dict().items()}
    (graph,) = kiln_torch.save_graph(model, (x,), tmp_path / "graph.kgraph")
    safetensors.save_file(state, tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()
    model.load_state_dict(state)
    expected = model(x)
    files = {"x": x}
    np.savez(tmp_path / "inputs.npz", **{name: value.numpy() for name, value in files.items()})
    outputs = {"output_0": expected.numpy()}
    if layout == "updated":
        outputs |= {"output_1": model.seen.numpy(), "output_2": model.seen.numpy()}
    np.savez(tmp_path / "expected.npz", **outputs)
    kiln(server, "run", graph, "--weights", tmp_path / "model.safetensors",
         "--inputs", tmp_path / "inputs.npz", "--expect", tmp_path / "expected.npz")  # fmt: skip
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_errors_name_tensor_file_and_both_shapes(server, tmp_path):
    model = torch.nn.Linear(3, 4)
    (graph,) = kiln_torch.save_graph(model, (torch.randn(2, 3),), tmp_path / "graph.kgraph")
    path = tmp_path / "w.safetensors"
    for tensors, sentence in [
        ({"weight": torch.randn(4, 5)}, f"tensor 'weight' of '{path}' is f32[4, 5]; the graph's input"),
        ({"weight": torch.randn(4, 3).half()}, "is f16[4, 3]; the graph's input"),
        ({"model.weight": torch.randn(4, 3)}, "such as 'model.weight', is an input of the graph, such as 'weight'"),
    ]:  # fmt: skip
        safetensors.save_file(tensors, path)
        assert sentence in kiln(server, "run", graph, "--weights", path, code=2).stderr
    again = ("--weights", path, "--weights", path)
    assert "'model.weight' is in" in kiln(server, "run", graph, *again, code=2).stderr
    artifact = tmp_path / "artifact.kart"
    kiln(server, "compile", graph, "-o", artifact)
    assert "needs the graph" in kiln(server, "run", artifact, "--weights", path, code=2).stderr


def test_functions_of_several_modules_name_the_variable():
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def function(x):
        return second(first(x))

    from kiln_torch.tools import _capture_all
    from kiln_torch.settings import Settings

    (graph,) = _capture_all(function, (torch.randn(2, 3),), Settings.read(None), train=False)
    names = [tuple(entry.get("module_names", ())) for entry in json.loads(graph.text)["inputs"]]
    assert sorted(names) == [("first.bias",), ("first.weight",), ("second.bias",), ("second.weight",), ("x",)]


def test_names_are_no_part_of_the_key(server, tmp_path):
    """Two modules that differ in names alone share an artifact, and each keeps its own names."""

    class Other(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.randn(4, 3))
            self.weight = torch.nn.Parameter(torch.randn(4))

        def forward(self, input):
            return torch.nn.functional.linear(input, self.bias, self.weight)

    x = torch.randn(2, 3)
    keys, listed = set(), []
    for number, model in enumerate([torch.nn.Linear(3, 4), Other()]):
        (graph,) = kiln_torch.save_graph(model, (x,), tmp_path / f"{number}.kgraph")
        keys.add(json.loads(kiln(server, "compile", graph, "--json").stdout)["key"])
        listed.append(names_of(server, graph))
    assert len(keys) == 1
    assert listed == [[("weight",), ("bias",), ("input",)], [("bias",), ("weight",), ("input",)]]


def test_backward_graphs_name_what_they_read(tmp_path):
    from kiln_torch.settings import Settings
    from kiln_torch.tools import _capture_all

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    x = torch.randn(5, 3, requires_grad=True)
    graphs = _capture_all(model, (x,), Settings.read(None), train=True)
    backward = json.loads(next(graph.text for graph in graphs if graph.kind == "backward"))
    names = {name for entry in backward["inputs"] for name in entry.get("module_names", ())}
    assert names & {"0.weight", "2.weight"}
    assert _kiln.graph_to_bytes(json.dumps(backward))
