"""Names of the methods of intervals, which the command line needs before it loads NumPy."""

from __future__ import annotations

RUNS_FOR_IQM = 10
"""Number of runs from which the interquartile mean and the bootstrap are used; below, the mean and Student's
t."""
BOOTSTRAP = "stratified bootstrap"
STUDENT = "Student's t"
METHODS = f"{STUDENT} for 3 to 9 seeds, {BOOTSTRAP} from 10 on"
"""Names of the methods of all intervals but those of a probability of improvement."""


def method_of(number_of_runs: int | None) -> str:
    """Return the name of the method of the interval of a number of runs; None names that of any number."""
    if number_of_runs is None:
        return METHODS
    return BOOTSTRAP if number_of_runs >= RUNS_FOR_IQM else STUDENT
