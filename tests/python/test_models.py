"""Real transformers models with random weights, in small sizes, through a real server."""

import os
import subprocess
import sys

import pytest
import small_models
import torch
from compare import assert_same, double_reference
from small_models import make

import kiln_torch


def tensors(output):
    return [v for v in output.values() if isinstance(v, torch.Tensor)]


@pytest.mark.parametrize("builder", [small_models.bert, small_models.resnet])
def test_inference_equals_eager_and_everything_is_native(builder):
    model, inputs = make(builder)
    with torch.no_grad():
        expected = tensors(model(**inputs))
        reference = tensors(double_reference(model, inputs))
        actual = tensors(torch.compile(model, backend="kiln")(**inputs))
    assert_same(actual, expected, reference)
    stats = kiln_torch.stats()
    assert stats["fallbacks"] == [] and stats["library_ops"] == {}
    assert stats["graphs"] == 1 and stats["compiles"] == 1
    assert stats["steps"]["native"] > 0


@pytest.mark.parametrize(
    ("builder", "dynamic"),
    [
        (small_models.gpt2, False),
        (small_models.gpt2, True),
        (small_models.llama, False),
        (small_models.t5, False),
        (small_models.whisper, False),
        (small_models.vit, False),
        (small_models.vit, True),
        (small_models.swin, False),  # torch itself takes two minutes for its symbols: sweep_models.py
        (small_models.convnext, False),
        (small_models.mobilenet, False),
    ],
)
def test_other_models_run_without_falling_back(builder, dynamic):
    model, inputs = make(builder)
    with torch.no_grad():
        expected = tensors(model(**inputs))
        reference = tensors(double_reference(model, inputs))
        actual = tensors(torch.compile(model, backend="kiln", dynamic=dynamic)(**inputs))
    assert_same(actual, expected, reference)
    assert kiln_torch.stats()["fallbacks"] == []


def test_second_process_compiles_nothing(server):
    script = """
import sys, torch, kiln_torch
sys.path.append(sys.argv[1])
import small_models
model, inputs = small_models.make(small_models.bert)
with torch.no_grad():
    torch.compile(model, backend="kiln")(**inputs)
stats = kiln_torch.stats()
print(stats["compiles"], stats["hits"]["server"], len(stats["fallbacks"]))
"""
    here = os.path.dirname(__file__)
    answers = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script, here],
            env={**os.environ, "KILN_SERVER": server.address},
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append(done.stdout.split()[-3:])
    assert answers[1] == ["0", "1", "0"]


def test_bert_training_step_gives_eagers_gradients():
    model, inputs = make(small_models.bert)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config._attn_implementation = "eager"

    def gradients(step):
        model.zero_grad()
        step(**inputs).last_hidden_state.square().mean().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected = gradients(model)
    actual = gradients(torch.compile(model, backend="kiln"))
    for name in expected:  # AOTAutograd gives unused parameters zeros where eager gives nothing
        torch.testing.assert_close(actual[name], expected[name], rtol=2e-3, atol=2e-5, msg=name)
    assert kiln_torch.stats()["fallbacks"] == []
