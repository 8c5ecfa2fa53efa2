"""Trains a small GPT-2 and a small ResNet with eager and with Kiln and draws the loss curves.

    KILN_SERVER=... PYTHONPATH=build/release/python python tests/bench/train_curves.py [--steps 300]

Data come from generators here: sentences of a small grammar, and pictures of shapes in noise. Eager
and Kiln start from one seed; a second eager seed shows how far chance alone takes the loss. Prints the
mean loss of the last 30 steps and the time of a step, and writes an SVG with all curves.
"""

import argparse
import contextlib
import pathlib
import sys
import time
import warnings

import torch
import transformers

import kiln_torch

WORDS = {
    "name": ["anna", "otto", "ida", "hugo"],
    "verb": ["sees", "draws", "finds", "likes"],
    "adjective": ["red", "small", "old", "round"],
    "noun": ["stone", "house", "tree", "boat"],
}
LETTERS = sorted(set("".join(sum(WORDS.values(), [])) + " ."))
LAST = 30


def sentences(generator, length):
    """Letters of "NAME VERB the ADJECTIVE NOUN. " again and again, as numbers."""

    def pick(kind):
        return WORDS[kind][torch.randint(len(WORDS[kind]), (), generator=generator)]

    text = ""
    while len(text) < length:
        text += f"{pick('name')} {pick('verb')} a {pick('adjective')} {pick('noun')}. "
    return torch.tensor([LETTERS.index(letter) for letter in text[:length]])


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=len(LETTERS), n_layer=3, n_embd=96, n_head=4, n_positions=64, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config)

    def batch(generator):
        return {"input_ids": torch.stack([sentences(generator, 64) for _ in range(16)])}

    def loss(model, inputs):
        logits = model(**inputs).logits[:, :-1]
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), inputs["input_ids"][:, 1:].flatten()
        )

    return model, batch, loss, 1e-3


def pictures(generator, count):
    """Discs, squares, crosses and stripes at random places in noise: [count, 3, 24, 24], classes."""
    kind = torch.randint(4, (count, 1, 1), generator=generator)
    x0, y0 = torch.randint(7, 17, (2, count, 1, 1), generator=generator)
    y, x = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
    dx, dy = (x - x0).abs(), (y - y0).abs()
    shapes = [dx**2 + dy**2 <= 30, (dx <= 5) & (dy <= 5), (dx <= 1) | (dy <= 1), (x + y) % 6 < 2]
    image = sum((kind == k) * shape for k, shape in enumerate(shapes)).float()
    noise = torch.randn(count, 3, 24, 24, generator=generator)
    return image[:, None] + noise, kind.flatten()


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48], depths=[1, 1, 1], layer_type="basic",
        num_labels=4,
    )
    model = transformers.ResNetForImageClassification(config)

    def batch(generator):
        images, classes = pictures(generator, 32)
        return {"pixel_values": images, "labels": classes}

    def loss(model, inputs):
        logits = model(pixel_values=inputs["pixel_values"]).logits
        return torch.nn.functional.cross_entropy(logits.float(), inputs["labels"])

    return model, batch, loss, 2e-3


def train(build, seed, steps, compiled, autocast):
    """(losses, seconds of a step in the second half)"""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, batch, loss, rate = build()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    run = torch.compile(model, backend="kiln", options={"fallback": "raise"}) if compiled else model
    amp = torch.autocast("cpu", dtype=torch.bfloat16)
    losses, began = [], 0.0
    for number in range(steps):
        if number == steps // 2:
            began = time.monotonic()
        inputs = batch(generator)
        optimizer.zero_grad()
        with amp if autocast else contextlib.nullcontext():
            value = loss(run, inputs)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, (time.monotonic() - began) / (steps - steps // 2)


COLOURS = {"eager": "#1f77b4", "eager, another seed": "#9aa0a6", "kiln": "#d62728"}


def panel(name, curves, left, steps):
    """SVG of one model's curves in a field of 420 x 280 at (left, 40)."""
    top = max(max(losses) for losses in curves.values())
    parts = [
        f'<text x="{left}" y="28" font-weight="bold">{name}</text>',
        f'<path d="M{left} 40V320H{left + 420}" fill="none" stroke="#333"/>',
        f'<text x="{left - 8}" y="46" text-anchor="end">{top:.2f}</text>',
        f'<text x="{left - 8}" y="322" text-anchor="end">0</text>',
        f'<text x="{left + 420}" y="338" text-anchor="end">{steps} steps</text>',
    ]
    for row, (label, losses) in enumerate(curves.items()):
        points = " ".join(
            f"{left + 420 * i / max(1, steps - 1):.1f},{320 - 280 * value / top:.1f}"
            for i, value in enumerate(losses)
        )
        final = sum(losses[-LAST:]) / len(losses[-LAST:])
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[label]}" opacity=".8"/>'
            f'<text x="{left + 412}" y="{60 + 18 * row}" text-anchor="end" fill="{COLOURS[label]}">'
            f"{label}: {final:.4f} at the end</text>"
        )
    return "".join(parts)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--autocast", action="store_true", help="bfloat16 autocast")
    arguments.add_argument("--svg", default=str(pathlib.Path(__file__).with_suffix(".svg")))
    options = arguments.parse_args()
    warnings.filterwarnings("ignore")
    panels, bad = [], 0
    for number, (name, build) in enumerate({"GPT-2": gpt2, "ResNet": resnet}.items()):
        torch._dynamo.reset()
        kiln_torch.reset()
        curves, final = {}, {}
        for label, seed in (("eager", 1), ("eager, another seed", 2), ("kiln", 1)):
            losses, seconds = train(
                build, seed, options.steps, label == "kiln", options.autocast
            )
            curves[label] = losses
            final[label] = sum(losses[-LAST:]) / len(losses[-LAST:])
            print(f"{name:7} {label:20} {final[label]:.4f} at the end, {1e3 * seconds:.1f} ms a step")
            sys.stdout.flush()
        noise = abs(final["eager"] - final["eager, another seed"])
        apart = abs(final["kiln"] - final["eager"])
        within = apart <= max(2 * noise, 0.05 * final["eager"])
        bad += not within
        print(f"{name:7} kiln and eager are {apart:.4f} apart, two eager seeds {noise:.4f}: "
              f"{'within' if within else 'NOT within'} the noise")
        panels.append(panel(name, curves, 60 + 500 * number, options.steps))
    pathlib.Path(options.svg).write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 350" font-family="sans-serif" '
        f'font-size="13"><rect width="1000" height="350" fill="#fff"/>{"".join(panels)}</svg>\n'
    )
    print(f"curves: {options.svg}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
