"""Every small model in every mode against eager: prints a table and the reasons.

    PYTHONPATH=build/release/python python tests/python/sweep_models.py [MODEL ...] [--modes a,b] [--device cuda]

KILN_SERVER names the server. A mode is float32, bfloat16, float16, autocast or autocast16 (to
bfloat16 and to float16), with "train" for forward and
backward or "infer", and "dynamic" for symbolic sizes or "resized" for five steps of which each has
other sizes (torch's automatic dynamic: the second step makes sizes symbolic, the last ones have a
batch of 1 and of 0): train-bfloat16, infer-float32-dynamic, train-float32-resized, ...
Exit code 1 where a model differs, raises or falls back.
"""

import argparse
import pathlib
import sys
import time
import traceback
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import small_models  # noqa: E402
import torch  # noqa: E402
from model_step import compare_step  # noqa: E402

MODES = "train-float32,train-bfloat16,train-autocast,infer-float32,infer-bfloat16,infer-float32-dynamic"

# Batch and what is added to lengths, of the steps after the first.
SIZES = ((3, 2), (5, 5), (1, 3), (0, 1))


def run(name, mode, calls, device):
    """(verdict, why, library operators)"""
    parts = mode.split("-")
    model, inputs = small_models.make(small_models.MODELS[name])
    then = [inputs] * (calls - 1)
    if "resized" in parts:
        then = [small_models.resized(name, inputs, batch, more) for batch, more in SIZES]
    try:
        stats = compare_step(
            model, inputs, parts[1], parts[0] == "train", "dynamic" in parts or None, then, device
        )
    except AssertionError as error:
        return "differs", str(error), {}
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "raises", f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})", {}
    if stats["fallbacks"]:
        return "falls back", stats["fallbacks"][0]["reason"], stats["library_ops"]
    if stats["graphs"] == 0:
        return "no graph", "torch.compile captured nothing", {}
    return "equal", "", stats["library_ops"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("models", nargs="*", default=list(small_models.MODELS))
    arguments.add_argument("--modes", default=MODES)
    arguments.add_argument("--calls", type=int, default=1, help="steps of each model, one more each")
    arguments.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments.add_argument("--ops", action="store_true", help="name the library steps")
    options = arguments.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(2)
    torch.backends.cudnn.allow_tf32 = False  # else float32 on a GPU is not
    bad = 0
    for mode in options.modes.split(","):
        counts = {}
        for name in options.models:
            began = time.monotonic()
            verdict, why, library = run(name, mode, options.calls, options.device)
            counts[verdict] = counts.get(verdict, 0) + 1
            bad += verdict not in ("equal", "no graph")
            took = f"{time.monotonic() - began:.1f} s"
            print(f"{mode:24} {name:20} {verdict:10} {took:>7} {why.splitlines()[0][:200] if why else ''}")
            if options.ops and library:
                print(f"{'':45} {library}")
            sys.stdout.flush()
        print(f"{mode}: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
