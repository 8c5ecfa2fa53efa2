"""Random graphs against eager: python tests/fuzz/graphs --seconds 60 --seed 1

Makes programs of ATen operators, compiles each with torch.compile(backend="kiln") and compares outputs,
written inputs, storage that is shared, and gradients with eager. A program that differs, crashes, or
falls back to eager is made small and written as a script that shows it. Needs a running kilnd
(KILN_SERVER), and kiln_torch on PYTHONPATH. Exit code 1 where anything was found.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from pathlib import Path

from process import Child
from program import Program
from script import script
from shrink import shrink

_NO_FAULT = ("", "eager")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/fuzz/graphs", description=__doc__.split("\n\n")[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="the first program's seed (default 1)")
    parser.add_argument("--count", type=int, help="at most so many programs")
    parser.add_argument("--length", type=int, default=14, help="statements of a program (14)")
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")],
                        help="what sizes are drawn from, such as 64,127,160,257 (default 2 to 33)")
    parser.add_argument("--repeats", type=float, default=0, metavar="SHARE",
                        help="this share of statements comes twice (default 0)")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz/graphs"),
                        help="folder for scripts of findings (default build/fuzz/graphs)")
    parser.add_argument("--shrink-seconds", type=float, default=60,
                        help="at most so long to make one finding small (default 60)")
    parser.add_argument("--timeout", type=float, default=120,
                        help="seconds after which one program hangs (default 120)")
    parser.add_argument("--layer", choices=("kiln", "capture", "torch"), default="kiln",
                        help="run the graphs by Kiln; by eager, after the same capture and "
                        "decompositions; or by torch's aot_eager (default kiln)")
    parser.add_argument("--stop", action="store_true", help="stop after the first finding")
    parser.add_argument("--import", dest="load", metavar="MODULE", default="",
                        help="a Python module to load before the first program")
    parser.add_argument("--print", action="store_true", dest="show",
                        help="print the program of --seed and stop")
    return parser.parse_args()


class Session:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.child = Child(given.timeout, given.load)
        self.programs = self.graphs = self.dynamic = self.backward = self.eager = 0
        self.families: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.layers: Counter[str] = Counter()
        self.sentences: dict[str, str] = {}  # what was found, and in which layer

    def run(self) -> None:
        deadline = time.monotonic() + self.given.seconds
        seed = self.given.seed
        last = seed + (self.given.count or sys.maxsize)
        while time.monotonic() < deadline and seed < last:
            self.one(seed)
            seed += 1
            if self.given.stop and (self.kinds or self.layers["capture"]):
                break
        self.child.close()

    def one(self, seed: int) -> None:
        program = self.child.generate(seed, self.given.length, self.given.sizes, self.given.repeats)
        if program is None:
            self.eager += 1
            return
        outcome = self.child.check(program, self.given.layer)
        self.programs += 1
        self.graphs += outcome["graphs"]
        self.dynamic += program.dynamic
        self.backward += outcome["backward"]
        self.eager += outcome["kind"] == "eager"
        self.families.update(statement.family for statement in program.statements)
        if outcome["kind"] not in _NO_FAULT:
            self.found(program, outcome)

    def found(self, program: Program, outcome: dict) -> None:
        kind = outcome["kind"]
        # A refusal or an error says what it is about: one program of each is enough.
        sentence = re.sub(r"\d+", "N", outcome["what"].split(", with sizes")[0])
        again = kind in ("fallback", "error") and sentence in self.sentences
        layer = self.sentences[sentence] if again else self.layer(program, kind)
        self.sentences[sentence] = layer
        self.layers[layer] += 1
        if layer == "kiln":
            self.kinds[kind] += 1
        if again:
            return
        if layer == "torch":
            print(f"seed {program.seed}: torch's own, without Kiln: {outcome['what'][:150]}\n")
            if self.given.layer != "torch":
                return
        small = shrink(
            program,
            lambda candidate: self.child.check(candidate, self.given.layer)["kind"] == kind,
            self.child.cut,
            self.given.shrink_seconds,
        )
        what = self.child.check(small, self.given.layer)["what"] or outcome["what"]
        self.given.out.mkdir(parents=True, exist_ok=True)
        path = self.given.out / f"{layer}-{kind}-{program.seed}.py"
        path.write_text(script(small, f"seed {program.seed}: {kind} ({layer}): {what}"))
        print(f"seed {program.seed}: {kind} ({layer}): {what}\n{small.function()}see {path}\n",
              flush=True)

    def layer(self, program: Program, kind: str) -> str:
        """Whose fault: torch's own, without Kiln; its decompositions with eager; else Kiln's."""
        if kind == "fallback" or self.given.layer == "torch":
            return self.given.layer
        for layer in ("torch", "capture"):
            if self.child.check(program, layer)["kind"] not in _NO_FAULT:
                return layer
        return self.given.layer

    def summary(self) -> str:
        families = ", ".join(f"{name} {n}" for name, n in sorted(self.families.items()))
        found = ", ".join(f"{name} {n}" for name, n in sorted(self.kinds.items())) or "none"
        return (
            f"seeds {self.given.seed} to {self.given.seed + self.programs - 1}: "
            f"{self.programs} programs ({self.dynamic} dynamic, {self.backward} with gradients), "
            f"{self.graphs} graphs, {sum(self.families.values())} operators\n"
            f"operators: {families}\n"
            f"findings: {found}; torch's own without Kiln: {self.layers['torch']}, "
            f"of the capture: {self.layers['capture']}; not to be judged: {self.eager}"
        )


def main() -> int:
    given = arguments()
    session = Session(given)
    if given.show:
        program = session.child.generate(given.seed, given.length, given.sizes, given.repeats)
        session.child.close()
        print(script(program, f"seed {given.seed}") if program else "no such program")
        return 0
    print(f"seed {given.seed}, {given.seconds:.0f} s", flush=True)
    session.run()
    print(session.summary())
    return 1 if session.kinds or session.layers["capture"] else 0


if __name__ == "__main__":
    sys.exit(main())
