"""BERT-base from transformers, random weights, under torch.compile(backend="kiln").

quickstart_torch.py [--second]: with --second, fails unless the server had every artifact.
"""

import statistics
import sys
import time

import torch
import transformers

import kiln_torch


def median_ms(call, repeats=5):
    times = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def main() -> int:
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig()).eval()
    ids = torch.randint(0, model.config.vocab_size, (1, 128))
    with torch.no_grad():
        compiled = torch.compile(model, backend="kiln")
        start = time.perf_counter()
        actual = compiled(ids).last_hidden_state
        first_call_s = time.perf_counter() - start
        stats = kiln_torch.stats()
        for fallback in stats["fallbacks"]:
            print(f"error: {fallback['graph']} fell back: {fallback['reason']}", file=sys.stderr)
        if stats["fallbacks"]:
            return 1
        waits = [f"{ms:.0f} ms compile" for ms in stats["compile_ms"]]
        waits += [f"{ms:.0f} ms fetch" for ms in stats["fetch_ms"]]
        print(f"first call {first_call_s:.1f} s, of it: {', '.join(waits)}; "
              f"{stats['compiles']} compiles, {stats['hits']['server']} from the server's cache")
        if "--second" in sys.argv[1:]:
            return 0 if stats["compiles"] == 0 else 1
        worst = (actual - model(ids).last_hidden_state).abs().max().item()
        print(f"largest difference from eager: {worst:.1e}")
        eager_ms = median_ms(lambda: model(ids))
        kiln_ms = median_ms(lambda: compiled(ids))
        print(f"eager {eager_ms:.1f} ms   kiln {kiln_ms:.1f} ms   {eager_ms / kiln_ms:.2f}x "
              f"({torch.get_num_threads()} threads)")
        return 0 if worst < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
