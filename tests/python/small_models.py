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


def _encoder(config_class, model_class, **more):
    """A builder of BERT's shape, for the many configurations that name things as BERT does."""

    def build():
        sizes = {
            "vocab_size": 100,
            "hidden_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "max_position_embeddings": 64,
        }
        return model_class(config_class(**{**sizes, **more})), {IDS: ids(2, 19)}

    return build


def _decoder(config_class, model_class, **more):
    return _encoder(config_class, model_class, use_cache=False, **more)


def opt():
    config = T.OPTConfig(
        vocab_size=100,
        hidden_size=48,
        num_hidden_layers=2,
        ffn_dim=96,
        num_attention_heads=4,
        word_embed_proj_dim=48,
        max_position_embeddings=64,
        use_cache=False,
    )
    return T.OPTForCausalLM(config), {IDS: ids(2, 23)}


def bloom():
    config = T.BloomConfig(vocab_size=100, hidden_size=48, n_layer=2, n_head=4, use_cache=False)
    return T.BloomModel(config), {IDS: ids(2, 15)}


def distilbert():
    config = T.DistilBertConfig(vocab_size=100, dim=48, n_layers=2, n_heads=4, hidden_dim=96)
    return T.DistilBertModel(config), {IDS: ids(2, 20)}


def bart():
    config = T.BartConfig(
        vocab_size=100,
        d_model=48,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_position_embeddings=64,
        use_cache=False,
    )
    return T.BartModel(config), {IDS: ids(2, 17), "decoder_input_ids": ids(2, 9)}


def clip():
    text = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    text |= {"intermediate_size": 64, "max_position_embeddings": 32, "eos_token_id": 99}
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision |= {"intermediate_size": 64, "image_size": 32, "patch_size": 8}
    config = T.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    return T.CLIPModel(config), {IDS: ids(2, 12), "pixel_values": torch.randn(2, 3, 32, 32)}


def segformer():
    config = T.SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 24, 32, 48],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=32,
        num_labels=5,
    )
    model = T.SegformerForSemanticSegmentation(config)
    return model, {"pixel_values": torch.randn(2, 3, 64, 64)}


def regnet():
    config = T.RegNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], groups_width=8
    )
    return T.RegNetModel(config), {"pixel_values": torch.randn(2, 3, 64, 64)}


def efficientnet():
    config = T.EfficientNetConfig(
        image_size=64, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320
    )
    return T.EfficientNetModel(config), {"pixel_values": torch.randn(2, 3, 64, 64)}


def wav2vec2():
    config = T.Wav2Vec2Config(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        conv_dim=(16, 16, 16),
        conv_kernel=(10, 3, 3),
        conv_stride=(5, 2, 2),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0,
        layerdrop=0.0,
    )
    return T.Wav2Vec2Model(config), {"input_values": torch.randn(2, 1600)}


class _TransformerEncoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(48, 4, 96, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x, padding):
        return {"out": self.encoder(x, src_key_padding_mask=padding)}


def transformer_encoder():
    padding = torch.arange(18)[None, :] >= torch.tensor([[18], [11]])
    return _TransformerEncoder(), {"x": torch.randn(2, 18, 48), "padding": padding}


class _UNet(torch.nn.Module):
    def __init__(self):
        super().__init__()

        def block(channels_in, channels_out):
            return torch.nn.Sequential(
                torch.nn.Conv2d(channels_in, channels_out, 3, padding=1),
                torch.nn.GroupNorm(4, channels_out),
                torch.nn.SiLU(),
                torch.nn.Conv2d(channels_out, channels_out, 3, padding=1),
                torch.nn.BatchNorm2d(channels_out),
                torch.nn.ReLU(),
            )

        self.down1, self.down2, self.middle = block(3, 16), block(16, 24), block(24, 32)
        self.up2 = torch.nn.ConvTranspose2d(32, 24, 2, stride=2)
        self.after2, self.after1 = block(48, 24), block(40, 16)
        self.out = torch.nn.Conv2d(16, 4, 1)

    def forward(self, x):
        pool, grow = torch.nn.functional.max_pool2d, torch.nn.functional.interpolate
        first = self.down1(x)
        second = self.down2(pool(first, 2))
        third = self.middle(pool(second, 2))
        second = self.after2(torch.cat([self.up2(third), second], 1))
        wide = grow(second, scale_factor=2.0, mode="bilinear", align_corners=False)
        return {"out": self.out(self.after1(torch.cat([wide, first], 1)))}


def unet():
    return _UNet(), {"x": torch.randn(2, 3, 32, 24)}


class _DLRM(torch.nn.Module):
    """Sparse features as bags of embeddings, dense ones by a perceptron, pairwise products."""

    def __init__(self):
        super().__init__()
        self.bags = torch.nn.ModuleList(
            [torch.nn.EmbeddingBag(50, 16, mode=mode) for mode in ("sum", "mean", "sum")]
        )
        self.bottom = torch.nn.Sequential(
            torch.nn.Linear(13, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16), torch.nn.ReLU()
        )
        self.top = torch.nn.Sequential(
            torch.nn.Linear(16 + 6, 24), torch.nn.ReLU(), torch.nn.Linear(24, 1)
        )

    def forward(self, dense, indices, offsets):
        x = self.bottom(dense)
        features = [x] + [bag(indices[i], offsets) for i, bag in enumerate(self.bags)]
        stacked = torch.stack(features, 1)
        products = stacked @ stacked.transpose(1, 2)
        row, column = torch.tril_indices(4, 4, offset=-1)
        out = self.top(torch.cat([x, products[:, row, column]], 1))
        return {"out": torch.sigmoid(out)}


def dlrm():
    inputs = {"dense": torch.randn(8, 13), "indices": ids(3, 24, vocabulary=50)}
    return _DLRM(), {**inputs, "offsets": torch.arange(0, 24, 3)}


class _Recurrent(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(12, 20, num_layers=2, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(40, 5)

    def forward(self, x):
        return {"out": self.head(self.rnn(x)[0])}


def lstm():
    return _Recurrent(torch.nn.LSTM), {"x": torch.randn(3, 9, 12)}


def gru():
    return _Recurrent(torch.nn.GRU), {"x": torch.randn(3, 9, 12)}


class _Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.GELU(),
            torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Tanh(),
            torch.nn.Linear(64, 7),
        )

    def forward(self, x):
        return {"out": self.layers(x).log_softmax(-1)}


def mlp():
    return _Mlp(), {"x": torch.randn(16, 20)}


# Every model by its name.
MODELS = {
    builder.__name__: builder
    for builder in (
        *(bert, resnet, gpt2, llama, t5, whisper, vit, swin, convnext, mobilenet),
        *(opt, bloom, distilbert, bart, clip, segformer, regnet, efficientnet, wav2vec2),
        *(transformer_encoder, unet, dlrm, lstm, gru, mlp),
    )
} | {
    "roberta": _encoder(T.RobertaConfig, T.RobertaModel, pad_token_id=0),
    "albert": _encoder(T.AlbertConfig, T.AlbertModel, embedding_size=24),
    "electra": _encoder(T.ElectraConfig, T.ElectraModel, embedding_size=24),
    "mpnet": _encoder(T.MPNetConfig, T.MPNetModel),
    "deberta": _encoder(T.DebertaV2Config, T.DebertaV2Model),
    "mistral": _decoder(T.MistralConfig, T.MistralModel, num_key_value_heads=2),
    "qwen2": _decoder(T.Qwen2Config, T.Qwen2ForCausalLM, num_key_value_heads=2),
    "gemma": _decoder(T.GemmaConfig, T.GemmaModel, num_key_value_heads=2, head_dim=12),
    "gpt_neox": _decoder(T.GPTNeoXConfig, T.GPTNeoXModel),
}


# Inputs whose dimension 1 is a length, and models that take pictures of any height and width.
_LENGTHS = {IDS, "decoder_input_ids", "x", "padding", "input_values"}
_ANY_PICTURE = {"resnet", "convnext", "mobilenet", "segformer", "regnet", "efficientnet", "unet"}
_FIXED_LENGTH = {"dlrm", "mlp"}


def resized(name, inputs, batch, more=0):
    """The inputs of model `name` with `batch` samples of a length greater by `more` (pictures: by
    eight times that), where the model takes any; elements repeat."""
    out = {}
    for key, value in inputs.items():
        sizes = list(value.shape)
        if name == "dlrm" and key != "dense":
            bag = inputs["indices"].shape[1] // inputs["dense"].shape[0]
            sizes[-1] = batch * bag if key == "indices" else batch
            out[key] = _grown(value, sizes) if key == "indices" else torch.arange(batch) * bag
            continue
        sizes[0] = batch
        if name in _ANY_PICTURE:
            sizes[2:] = [size + 8 * more for size in sizes[2:]]
        elif key in _LENGTHS and name not in _FIXED_LENGTH:
            sizes[1] += more * (200 if key == "input_values" else 1)
        out[key] = _grown(value, sizes)
    return out


def _grown(value, sizes):
    for dimension, size in enumerate(sizes):
        places = torch.arange(size) % value.shape[dimension]
        value = value.index_select(dimension, places)
    return value


def make(builder):
    """The model in evaluation mode, and its inputs, from one seed."""
    torch.manual_seed(0)
    model, inputs = builder()
    return model.eval(), inputs
