"""Decoding: one token of a causal language model with a static key/value cache."""

from __future__ import annotations

import functools
import statistics
import time

import torch
import transformers

CACHE_LENGTH = 512
PROMPT = 64  # tokens in the cache when decoding begins


def gpt2():
    return transformers.GPT2LMHeadModel, transformers.GPT2Config()


def llama_small():
    """123 million weights."""
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )


def llama_1b():
    """1.1 billion weights."""
    return transformers.LlamaForCausalLM, transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    )


DECODERS = {"gpt2": gpt2, "llama-small": llama_small, "llama-1b": llama_1b}


def make_model(name: str, dtype: torch.dtype) -> torch.nn.Module:
    make, config = DECODERS[name]()
    torch.manual_seed(0)
    return make(config).to(dtype).eval()


def weights_read(model: torch.nn.Module) -> int:
    """Bytes of parameters that one token reads: an embedding gives one row only, unless it is tied
    to the output."""
    read = {p.data_ptr(): p.nbytes for p in model.parameters()}
    output = model.get_output_embeddings().weight
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.weight is not output:
            read[module.weight.data_ptr()] = module.weight.nbytes // module.num_embeddings
    return sum(read.values())


class Decoder:
    """One form of a model with a cache of its own; each call decodes one token, greedily."""

    def __init__(self, model: torch.nn.Module, compile_step=lambda step: step) -> None:
        config = model.config
        self._cache = transformers.StaticCache(config, max_cache_len=CACHE_LENGTH)
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        self._cache.early_initialization(
            batch_size=1,
            num_heads=heads,
            head_dim=config.hidden_size // config.num_attention_heads,
            dtype=model.dtype,
            device="cpu",
        )

        # The choice of the next token belongs to it: torch's threads would wait on for their next
        # call on the processors that a compiled step needs.
        def step(token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits = model(token, past_key_values=self._cache, use_cache=True).logits[:, -1]
            return logits.argmax(-1, keepdim=True), logits

        self._step = compile_step(step)
        prompt = torch.arange(PROMPT).reshape(1, PROMPT) * 7 % config.vocab_size
        with torch.no_grad():
            model(prompt, past_key_values=self._cache, use_cache=True)
        self._begin()

    def _begin(self) -> None:
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(PROMPT)
        self._room = CACHE_LENGTH - PROMPT
        self.token = torch.zeros(1, 1, dtype=torch.int64)

    def __call__(self) -> torch.Tensor:
        """Logits, [1, vocabulary]."""
        if self._room == 0:
            self._begin()
        self._room -= 1
        with torch.no_grad():
            self.token, logits = self._step(self.token)
        return logits


class Bandwidth:
    """GB/s of this machine by torch's threads: a sum over 1 GiB of float32 (read), and a copy of it
    to another 1 GiB, the bytes read and those written counted (copy)."""

    def __init__(self) -> None:
        self._x, self._y = torch.ones(1 << 28), torch.zeros(1 << 28)
        self.read, self.copy = [], []

    def measure(self) -> None:
        start = time.perf_counter()
        self._x.sum()
        middle = time.perf_counter()
        self._y.copy_(self._x)
        end = time.perf_counter()
        self.read.append(self._x.nbytes / (middle - start) / 1e9)
        self.copy.append(2 * self._x.nbytes / (end - middle) / 1e9)


def decode(name: str, dtype: str) -> dict[str, object]:
    """Medians; the forms and the measure of memory take turns, since the machine's speed drifts."""
    model = make_model(name, getattr(torch, dtype))
    decoders = {
        "eager": Decoder(model),
        "kiln": Decoder(
            model, functools.partial(torch.compile, backend="kiln", options={"fallback": "raise"})
        ),
        "inductor": Decoder(model, torch.compile),
    }
    worst = 0.0
    for _ in range(8):
        logits = {which: step().float() for which, step in decoders.items()}
        scale = logits["eager"].abs().max()
        worst = max(worst, ((logits["kiln"] - logits["eager"]).abs().max() / scale).item())
        for step in decoders.values():
            step.token = decoders["eager"].token
    times = {which: [] for which in decoders}
    bandwidth = Bandwidth()
    for _ in range(12):
        for which, step in decoders.items():
            step()
            end = time.perf_counter() + 0.7
            while time.perf_counter() < end:
                start = time.perf_counter()
                step()
                times[which].append(time.perf_counter() - start)
            bandwidth.measure()
    return {
        **{f"{which}_ms": statistics.median(t) * 1e3 for which, t in times.items()},
        "bytes": weights_read(model),
        "read": statistics.median(bandwidth.read),
        "copy": statistics.median(bandwidth.copy),
        "difference": worst,
    }
