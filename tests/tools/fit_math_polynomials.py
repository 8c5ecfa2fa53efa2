#!/usr/bin/env python3
"""Prints the polynomial coefficients of compiler/codegen/source/prelude_math.inc.h, prelude_trigonometry.inc.h
and prelude_math_double.inc.h.

Each is a minimax fit by Remez's exchange algorithm on a grid of Chebyshev points, in 50 digits, or
for float32 coefficients by Lawson's method, where the coefficients are rounded one after the other, the
lowest order first, and the rest is fitted again, so that the later ones make up for the rounding.
Needs mpmath and numpy. Usage: fit_math_polynomials.py [NAME...]
"""
import sys

import numpy
from mpmath import cos, cosh, erf, erfc, exp, ln, mp, mpf, pi, sin, sinh, tanh, atan, log1p

mp.dps = 50
GRID_POINTS = 500


def solve(rows, right):
    return mp.lu_solve(mp.matrix(rows), mp.matrix(right))


def remez(points, targets, weights, powers):
    """Coefficients of sum c_k x^powers[k] least in max |weight * (sum - target)|, and that maximum."""
    count = len(powers) + 1
    picks = [round(i * (len(points) - 1) / (count - 1)) for i in range(count)]
    table = [[w * x**p for p in powers] for x, w in zip(points, weights)]
    scaled = [w * t for w, t in zip(weights, targets)]
    for _ in range(40):
        rows = [table[i] + [mpf((-1) ** k)] for k, i in enumerate(picks)]
        solution = solve(rows, [scaled[i] for i in picks])
        coefficients = list(solution)[:-1]
        errors = [sum(a * c for a, c in zip(row, coefficients)) - t for row, t in zip(table, scaled)]
        extrema = []  # the largest error of each run of one sign
        for i, error in enumerate(errors):
            if extrema and (errors[extrema[-1]] > 0) == (error > 0):
                if abs(error) > abs(errors[extrema[-1]]):
                    extrema[-1] = i
            else:
                extrema.append(i)
        while len(extrema) > count:
            ends = (0, -1)
            extrema.pop(min(ends, key=lambda k: abs(errors[extrema[k]])))
        if len(extrema) < count or extrema == picks:
            break
        picks = extrema
    return coefficients, max(abs(e) for e in errors)


def lawson(table, scaled):
    """Solves the same problem by Lawson's reweighted least squares: less exact, but it takes any basis."""
    importance = numpy.ones(len(scaled))
    best, best_error = None, numpy.inf
    for _ in range(200):
        root = numpy.sqrt(importance)
        solution = numpy.linalg.lstsq(table * root[:, None], scaled * root, rcond=None)[0]
        errors = abs(table @ solution - scaled)
        if errors.max() < best_error:
            best, best_error = solution, errors.max()
        importance = numpy.maximum(importance * errors, 1e-30)
        importance /= importance.sum()
    return best, best_error


def fit_rounded(points, targets, weights, powers):
    """float32 coefficients: each is rounded before the ones of higher order are fitted again."""
    as_array = lambda values: numpy.array([float(v) for v in values])
    table = as_array(weights)[:, None] * as_array(points)[:, None] ** numpy.array(list(powers))
    rest = as_array([w * t for w, t in zip(weights, targets)])
    fixed = []
    for k in range(table.shape[1]):
        fixed.append(float(numpy.float32(lawson(table[:, k:], rest)[0][0])))
        rest = rest - table[:, k] * fixed[-1]
    return fixed, mpf(float(abs(rest).max()))


def fit(name, target, weight, low, high, powers, bits):
    """Prints c of sum c_k x^powers[k], which approximates target; the error is weight * difference."""
    middle, half = (mpf(low) + high) / 2, (mpf(high) - low) / 2
    points = [middle - half * cos(pi * (2 * i + 1) / (2 * GRID_POINTS)) for i in range(GRID_POINTS)]
    points = [x for x in points if abs(x) > mpf(10) ** -9]
    targets, weights = [target(x) for x in points], [weight(x) for x in points]
    coefficients, error = remez(points, targets, weights, powers)
    if bits == 24:
        coefficients, error = fit_rounded(points, targets, weights, powers)

    def literal(value):
        digits, exponent = float(value).hex().split("p")
        return digits.rstrip("0") + "p" + exponent + ("f" if bits == 24 else "")

    print(f"{name}: error 2^{float(ln(error) / ln(2)):.1f}")
    print("   ", ", ".join(literal(c) for c in coefficients))


def erfcx(x):
    return exp(x * x) * erfc(x)


def unmap(t):
    """The x of t = (x - 2) / (x + 2)."""
    return 2 * (1 + t) / (1 - t)


def fit_table(name, function, step, degree):
    """Prints coefficients around each of 32 centres 0, step, ...: row k holds those of t^k. The first
    polynomial is odd and lacks a term t, for small arguments; the last is 1."""
    rows, worst = [[0.0] * 32 for _ in range(degree + 1)], mpf(0)
    rows[0][31] = 1.0
    for i in range(31):
        low, high = -step / 2 if i else mpf(0), step / 2
        middle, half = (low + high) / 2, (high - low) / 2
        points = [middle - half * cos(pi * (2 * k + 1) / 200) for k in range(100)]
        values = [function(i * step + t) for t in points]
        targets = values if i else [y - t for y, t in zip(values, points)]
        powers = range(degree + 1) if i else range(1, degree + 1, 2)
        coefficients, error = fit_rounded(points, targets, [1 / y for y in values], powers)
        for power, c in zip(powers, coefficients):
            rows[power][i] = c
        worst = max(worst, error)
    print(f"{name}: error 2^{float(ln(worst) / ln(2)):.1f}")
    for row in rows:
        texts = [f"{c:.9g}" for c in row]
        print("    {" + ", ".join(t + ("f" if {".", "e"} & set(t) else ".0f") for t in texts) + "},")


LN2 = ln(mpf(2))
QUARTER_PI = pi / 4 * mpf("1.001")
# name: (target, weight, low, high, powers, bits of the coefficients)
FITS = {
    "exp": (lambda r: (exp(r) - 1 - r) / r**2, lambda r: r**2 / exp(r), -0.35, 0.35, range(5), 24),
    "exp2": (lambda r: (2**r - 1) / r, lambda r: r / 2**r, -0.501, 0.501, range(6), 24),
    "log": (lambda f: (log1p(f) - f + f * f / 2) / f**3, lambda f: f**3 / log1p(f),
            -0.33334, 0.33334, range(8), 24),
    "sin": (lambda u: (sin(u**0.5) / u**0.5 - 1) / u, lambda u: u**1.5 / sin(u**0.5),
            0, QUARTER_PI**2, range(3), 24),
    "cos": (lambda u: (cos(u**0.5) - 1 + u / 2) / u**2, lambda u: u**2 / cos(u**0.5),
            0, QUARTER_PI**2, range(3), 24),
    "tanh": (lambda u: (tanh(u**0.5) / u**0.5 - 1) / u, lambda u: u**1.5 / tanh(u**0.5),
             0, mpf("0.626") ** 2, range(5), 24),
    "erf_small": (lambda u: erf(u**0.5) / u**0.5 - 1, lambda u: u**0.5 / erf(u**0.5),
                  0, mpf("1.001") ** 2, range(7), 24),
    "erf_large": (lambda x: ln(erfc(x)) / LN2, lambda x: erfc(x), mpf("0.999"), 4, range(7), 24),
    "double_exp2": (lambda r: (2**r - 1) / r, lambda r: r / 2**r, -0.501, 0.501, range(10), 53),
    "double_log": (lambda u: (ln((1 + u**0.5) / (1 - u**0.5)) / u**0.5 - 2) / u,
                   lambda u: u**1.5 / ln((1 + u**0.5) / (1 - u**0.5)), 0, 0.04001, range(7), 53),
    "double_atan": (lambda u: (atan(u**0.5) / u**0.5 - 1) / u, lambda u: u**1.5 / atan(u**0.5),
                    0, 1, range(12), 53),
    "double_sin": (lambda u: (sin(u**0.5) / u**0.5 - 1) / u, lambda u: u**1.5 / sin(u**0.5),
                   0, QUARTER_PI**2, range(5), 53),
    "double_cos": (lambda u: (cos(u**0.5) - 1 + u / 2) / u**2, lambda u: u**2 / cos(u**0.5),
                   0, QUARTER_PI**2, range(5), 53),
    "double_sinh": (lambda u: (sinh(u**0.5) / u**0.5 - 1) / u, lambda u: u**1.5 / sinh(u**0.5),
                    0, 1.001, range(5), 53),
    "double_erfcx": (lambda t: erfcx(unmap(t)), lambda t: 1 / erfcx(unmap(t)),
                     -1, mpf(8.2) / mpf(12.2), range(15), 53),
}

# name: (function, distance of centres, degree)
TABLES = {
    "table_erf": (erf, mpf(1) / 8, 5),
    "table_tanh": (tanh, mpf(147) / 512, 6),
}

if __name__ == "__main__":
    for fit_name in sys.argv[1:] or [*FITS, *TABLES]:
        if fit_name in TABLES:
            fit_table(fit_name, *TABLES[fit_name])
        else:
            fit(fit_name, *FITS[fit_name])
