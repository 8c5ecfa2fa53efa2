"""Tokens decoded one by one with transformers' static cache, which the graph updates in place."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from compare import assert_same

import kiln_torch

LENGTH = 24  # of the cache


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=96, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2
    )
    return transformers.GPT2LMHeadModel(config)


def llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=96,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


def decoder(model, compile_step=lambda step: step):
    """The next logits of a token, with a cache that holds a prompt."""
    config = model.config
    cache = transformers.StaticCache(config, max_cache_len=LENGTH)
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    head_dim = config.hidden_size // config.num_attention_heads
    cache.early_initialization(1, heads, head_dim, model.dtype, "cpu")
    model(torch.arange(5)[None], past_key_values=cache, use_cache=True)

    def step(token):
        return model(token, past_key_values=cache, use_cache=True).logits

    return compile_step(step), cache


@pytest.mark.parametrize(
    ("make", "dtype"), [(gpt2, torch.float32), (llama, torch.float32), (llama, torch.bfloat16)]
)
def test_tokens_one_by_one(make, dtype, tmp_path):
    torch.manual_seed(0)
    model = make().to(dtype).eval()
    options = {"debug_dir": str(tmp_path), "fallback": "raise"}

    def with_kiln(step):
        return torch.compile(step, backend="kiln", fullgraph=True, options=options)

    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    with torch.no_grad():
        kiln, kiln_cache = decoder(model, with_kiln)
        eager, eager_cache = decoder(model)
        token = torch.tensor([[7]])
        for _ in range(4):
            expected = eager(token)
            assert_same(kiln(token), expected, tol=tolerance)
            token = expected[:, -1].argmax(-1, keepdim=True)
        for ours, theirs in zip(kiln_cache.layers, eager_cache.layers, strict=True):
            assert_same([ours.keys, ours.values], [theirs.keys, theirs.values], tol=tolerance)
            assert ours.cumulative_length.item() == theirs.cumulative_length.item() == 9
    stats = kiln_torch.stats()
    assert (stats["graphs"], stats["steps"]["library"]) == (1, 0)
    # No cache is copied.
    (found,) = Path(tmp_path).glob("*/program.json")
    workspace = json.loads(found.read_text())["program"]["workspace_bytes"]
    assert int(workspace["value"]) < eager_cache.layers[0].keys.nbytes
