"""Real architectures from transformers in small sizes, random weights: name -> (model, kwargs)."""

import torch
import transformers as T

IDS = "input_ids"


def ids(*sizes, vocabulary=100):
    return torch.randint(0, vocabulary, sizes)


def bert():
    config = T.BertConfig(
        vocab_size=100,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
    )
    return T.BertModel(config), {IDS: ids(2, 24)}


def resnet():
    config = T.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 48, 64, 96], depths=[2, 1, 1, 1], num_labels=10
    )
    model = T.ResNetForImageClassification(config)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return model, {"pixel_values": torch.randn(2, 3, 61, 67)}


def gpt2():
    config = T.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=100, use_cache=False)
    return T.GPT2LMHeadModel(config), {IDS: ids(2, 33)}


def llama():
    config = T.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        use_cache=False,
    )
    return T.LlamaModel(config), {IDS: ids(2, 21)}


def t5():
    config = T.T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=100, use_cache=False
    )
    return T.T5Model(config), {IDS: ids(2, 17), "decoder_input_ids": ids(2, 9)}


def whisper():
    config = T.WhisperConfig(
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        vocab_size=100,
        max_source_positions=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    )
    inputs = {"input_features": torch.randn(1, 80, 100), "decoder_input_ids": ids(1, 7)}
    return T.WhisperModel(config), inputs


def vit():
    config = T.ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        image_size=64,
        patch_size=16,
    )
    return T.ViTModel(config), {"pixel_values": torch.randn(2, 3, 64, 64)}


def swin():
    config = T.SwinConfig(
        embed_dim=24, depths=[1, 1], num_heads=[2, 4], image_size=56, window_size=7
    )
    return T.SwinModel(config), {"pixel_values": torch.randn(1, 3, 56, 56)}


def convnext():
    config = T.ConvNextConfig(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1])
    return T.ConvNextModel(config), {"pixel_values": torch.randn(1, 3, 64, 64)}


def mobilenet():
    model = T.MobileNetV2ForImageClassification(T.MobileNetV2Config(num_labels=10))
    return model, {"pixel_values": torch.randn(1, 3, 64, 64)}


def make(builder):
    """The model in evaluation mode, and its inputs, from one seed."""
    torch.manual_seed(0)
    model, inputs = builder()
    return model.eval(), inputs
