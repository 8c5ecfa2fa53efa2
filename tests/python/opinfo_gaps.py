"""Operators whose answer is not as good as eager's, or that fall back, each with its reason.

(operator, dtype, direction): reason; "*" stands for all. opinfo_run.py runs them again: one that has
become equal must leave the list.
"""

import itertools

GAPS: dict[tuple[str, str, str], str] = {
    ("topk", "bfloat16", "backward"): "of equal elements the gradient goes to the first",
}


def gap(op, dtype, direction):
    """The entry that covers a case, or None."""
    for entry in itertools.product((op,), (dtype, "*"), (direction, "*")):
        if entry in GAPS:
            return entry
    return None
