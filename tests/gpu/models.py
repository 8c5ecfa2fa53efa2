"""Models of torch alone, in any size: the GPU machine has nothing else."""

from __future__ import annotations

import torch
from torch import nn

F = nn.functional


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return wide.to(x.dtype) * self.weight


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Block(nn.Module):
    """A transformer's layer: of GPT-2 and BERT, or of Llama where `gated`."""

    def __init__(self, width: int, heads: int, causal: bool, gated: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.gated, self.dropout = heads, causal, gated, dropout
        norm = RmsNorm if gated else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=not gated)
        self.out = nn.Linear(width, width, bias=not gated)
        self.up = nn.Linear(width, 4 * width, bias=not gated)
        self.gate = nn.Linear(width, 4 * width, bias=False) if gated else None
        self.down = nn.Linear(4 * width, width, bias=not gated)

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.gated:
            half = torch.arange(q.shape[-1] // 2, device=x.device)
            turns = torch.arange(s, device=x.device)[:, None] * 1e4 ** (-half / len(half))
            angles = torch.cat([turns, turns], -1)
            cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        probability = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal, dropout_p=probability
        )
        return self.out(y.transpose(1, 2).reshape(b, s, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.dropout(self._attention(self.norm1(x)), self.dropout, self.training)
        y = self.norm2(x)
        y = F.silu(self.gate(y)) * self.up(y) if self.gated else F.gelu(self.up(y), approximate="tanh")
        return x + F.dropout(self.down(y), self.dropout, self.training)


class Transformer(nn.Module):
    """Tokens [b, s] to logits [b, s, vocabulary]."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        layers: int,
        heads: int,
        *,
        positions: int = 1024,
        causal: bool = True,
        gated: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = None if gated else nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, causal, gated, dropout) for _ in range(layers)
        )
        self.norm = RmsNorm(width) if gated else nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Bottleneck(nn.Module):
    """ResNet's, [b, channels, h, w] to [b, 4 * width, h / stride, w / stride]."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.short: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            self.short = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    """Images [b, 3, h, w] to logits [b, classes]."""

    def __init__(self, width: int, depths: tuple[int, ...], classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        channels = width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                inner = width << stage
                layers.append(Bottleneck(channels, inner, 2 if stage and i == 0 else 1))
                channels = 4 * inner
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean((2, 3)))


class VisionTransformer(nn.Module):
    """Images [b, 3, size, size] to logits [b, classes]."""

    def __init__(
        self, size: int, patch: int, width: int, layers: int, heads: int, classes: int = 1000
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.zeros((size // patch) ** 2, width))
        self.blocks = nn.Sequential(
            *(Block(width, heads, False, False, 0.0) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))
