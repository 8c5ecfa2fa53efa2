"""What each target is known to lack: case name -> why.

Listed cases run too and must fail: a gap that is mended fails the suite until it is taken off.
"""

GAPS: dict[str, dict[str, str]] = {
    "cpp": {},
    "gcu": {},
    "interpreter": {},
    "ptx": {
        "f64": "no elementary functions of float64: a client with torch runs them by that",
        "scans": "logcumsumexp computes in float64, of which there are no elementary functions",
    },
}
