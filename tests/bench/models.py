"""Models from transformers with random weights, and example inputs; batch 1, as users run them."""

from collections.abc import Callable

import torch
import transformers


def bert_base(wide_layer: bool = False):
    config = transformers.BertConfig()
    model = transformers.BertModel(config).eval()
    if wide_layer:
        layer = model.encoder.layer[5]
        layer.intermediate.dense = torch.nn.Linear(config.hidden_size, 2048)
        layer.output.dense = torch.nn.Linear(2048, config.hidden_size)
    return model, (torch.randint(0, config.vocab_size, (1, 128)),)


def resnet_50():
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig()).eval()
    return model, (torch.randn(1, 3, 224, 224),)


def gpt2():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)).eval()
    return model, (torch.randint(0, 50257, (1, 128)),)


def vit_base():
    model = transformers.ViTModel(transformers.ViTConfig()).eval()
    return model, (torch.randn(1, 3, 224, 224),)


def t5_small():
    model = transformers.T5Model(transformers.T5Config(use_cache=False)).eval()
    return model, (torch.randint(0, 32128, (1, 128)), None, torch.randint(0, 32128, (1, 32)))


def llama(layers: int = 8):
    """A small Llama with grouped heads; 75 million weights at its eight layers."""
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).eval(), (torch.randint(0, 32000, (1, 128)),)


def whisper_tiny():
    model = transformers.WhisperModel(transformers.WhisperConfig(use_cache=False)).eval()
    return model, (torch.randn(1, 80, 3000), None, torch.randint(0, 50257, (1, 32)))


def mobilenet_v2():
    model = transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config()).eval()
    return model, (torch.randn(1, 3, 224, 224),)


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]] = {
    "bert-base": bert_base,
    "bert-base-one-wide-layer": lambda: bert_base(wide_layer=True),
    "resnet-50": resnet_50,
    "gpt2": gpt2,
    "vit-base": vit_base,
    "t5-small": t5_small,
    "llama": llama,
    "whisper-tiny": whisper_tiny,
    "mobilenet-v2": mobilenet_v2,
}
