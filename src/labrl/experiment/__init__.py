"""Experiments: grids and searches, in processes on this machine or on a cluster.

    command      what `labrl` does with its arguments, up to the composition by Hydra
    again        the experiment that `-m +resume` names, and the command line that composes it again
    grid         the trials of a grid, and the effect of edits on each of them
    sweep        the locked folder of a running experiment, and the queue of the trials of a grid
    search/      running a search: its space, its study in a shared storage, pruning, confirmation
    scheduler    tasks and outcomes; passes trials from a queue to a launcher when there is room
    launcher     base class of launchers, and the one that trains in this process
    local        a launcher: processes on this machine, each with its own cores and GPUs
    clusters     launchers: submitit jobs, Ray tasks
    machine      assigns the cores and GPUs of a machine to trials
    job          what Hydra calls for a new run, and the planning of trials in the command's process
    panel        the rows of the trials on a terminal or in a notebook while they run
    summary      the final table of a grid

`labrl.plugins` contains the sweepers that Hydra finds. A sweeper creates a queue (`Grid`, `Search`,
`ConfirmingRuns`), which provides tasks and receives their outcomes. A launcher depends on no queue.
"""
