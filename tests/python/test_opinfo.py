"""torch's own OpInfo samples through graphs of one operator each, against eager.

Every operator that the server lowers natively runs forward; of all operators, in every dtype and
direction, a fixed spread. opinfo_run.py runs them all.
"""

import warnings
import zlib

import pytest
from opinfo_case import all_cases, infos, run_case
from opinfo_gaps import gap
from opinfo_names import LOWERED, SAMPLES

warnings.filterwarnings("ignore")

ONE_OF = 40  # cases, in the spread


def lowered():
    for case in all_cases():
        if infos()[case.op].name in LOWERED and case.direction == "forward":
            if case.dtype in SAMPLES:
                yield pytest.param(case, SAMPLES[case.dtype], id=str(case))


def spread():
    for case in all_cases():
        if zlib.crc32(str(case).encode()) % ONE_OF == 0:
            if gap(case.op, case.dtype, case.direction) is None:
                yield pytest.param(case, 1, id=f"spread {case}")


@pytest.mark.parametrize(("case", "samples"), [*lowered(), *spread()])
def test_samples_equal_eager(case, samples):
    outcome = run_case(case, samples)
    if outcome.status == "not applicable":
        pytest.skip(outcome.why)
    assert outcome.status == "equal", outcome.why
