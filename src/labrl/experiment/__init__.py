"""Experiments: grids and searches, in processes on this machine or on a cluster.

    earlier      the experiment that `-m +resume` names, and the overrides that compose it again
    grid         the trials of a grid, and the effect of edits on each of them
    sweep        the queue of the trials of a grid
    search/      a search: its start, its space, Optuna's study, its queue and the confirmation
    trials       the locked folder of an experiment, what its trials share, and the folder of each
    scheduler    passes trials from a queue to a launcher when there is room, and reads how each has ended
    launcher     base class of launchers
    local        a launcher: processes on this machine, each with its own cores and GPUs
    clusters     launchers: submitit jobs, Ray tasks
    machine      assigns the cores and GPUs of a machine to trials
    panel        the rows of the trials on a terminal or in a notebook while they run
    summary      the final table of a grid

A trial is a `TrialRecord`, its entry in `experiment.json`, in all of them. A queue (`Grid`, `SearchQueue`,
`RetryingQueue`) provides trials and is told which have ended. A launcher is handed the order that names a run
folder, and slots; it depends on no queue.
"""
