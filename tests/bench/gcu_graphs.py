"""Writes graphs for gcu_times.

    python tests/bench/gcu_graphs.py FOLDER MODEL[:BATCH[:train]] ...

MODEL: one of tests/bench/models.py, or of those below. BATCH: a number, 1 unless said; `dynamic`, for a
symbol captured at batch 8; or `length`, for one sequence of a length that is a symbol. `train`: with
gradients, forward and backward as graphs of their own. The file is FOLDER/MODEL-BATCH.kgraph; of several
graphs FOLDER/MODEL-BATCH.NUMBER.kgraph; `-train` follows the batch.
"""

import sys
from pathlib import Path

import torch
import transformers
from models import MODELS

import kiln_torch


def mlp():
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.LayerNorm(512)]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(1, 512),)


def _double_convolution(channels: int, to: int) -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for of in (channels, to):
        layers += [torch.nn.Conv2d(of, to, 3, padding=1), torch.nn.BatchNorm2d(to), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


class _UNet(torch.nn.Module):
    """Double convolutions of 32 to 256 channels; each skip is joined to a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        widths = [32, 64, 128, 256]
        self.down = torch.nn.ModuleList(map(_double_convolution, [3, *widths], widths))
        self.up, self.joined = torch.nn.ModuleList(), torch.nn.ModuleList()
        for width in reversed(widths[:-1]):
            self.up.append(torch.nn.ConvTranspose2d(2 * width, width, 2, stride=2))
            self.joined.append(_double_convolution(2 * width, width))
        self.out = torch.nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            if skips:
                x = torch.nn.functional.max_pool2d(x, 2)
            x = block(x)
            skips.append(x)
        for up, block, skip in zip(self.up, self.joined, reversed(skips[:-1]), strict=True):
            x = block(torch.cat([skip, up(x)], 1))
        return self.out(x)


def unet(size: int):
    return _UNet().eval(), (torch.randn(1, 3, size, size),)


def dcgan():
    """A generator of pictures of 3 x 64 x 64."""
    widths = [100, 512, 256, 128, 64]
    layers: list[torch.nn.Module] = []
    for i, (of, to) in enumerate(zip(widths, widths[1:], strict=False)):
        stride, padding = (1, 0) if i == 0 else (2, 1)
        layers.append(torch.nn.ConvTranspose2d(of, to, 4, stride, padding, bias=False))
        layers += [torch.nn.BatchNorm2d(to), torch.nn.ReLU()]
    layers += [torch.nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers).eval(), (torch.randn(1, 100, 1, 1),)


def small_resnet():
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic"
    )
    return transformers.ResNetForImageClassification(config), (torch.randn(1, 3, 64, 64),)


def small_bert():
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertModel(config), (torch.randint(0, 1000, (1, 64)),)


OWN = {
    "mlp": mlp,
    "unet-256": lambda: unet(256),
    "unet-512": lambda: unet(512),
    "dcgan": dcgan,
    "small-resnet": small_resnet,
    "small-bert": small_bert,
}


def main() -> None:
    folder = Path(sys.argv[1])
    for what in sys.argv[2:]:
        name, batch, mode = (what.split(":") + ["", ""])[:3]
        batch = batch or "1"
        torch.manual_seed(0)
        model, args = (MODELS | OWN)[name]()
        train = mode == "train"
        model.train(train)
        size = int(batch) if batch.isdigit() else {"dynamic": 8, "length": 1}[batch]
        args = tuple(arg if arg is None else arg.repeat(size, *[1] * (arg.dim() - 1)) for arg in args)
        for arg in filter(torch.is_tensor, args):
            if not batch.isdigit():
                torch._dynamo.mark_dynamic(arg, ["dynamic", "length"].index(batch))
        path = folder / f"{name}-{batch}{'-train' if train else ''}.kgraph"
        for written in kiln_torch.save_graph(model, args, path, train=train):
            print(written)


if __name__ == "__main__":
    main()
