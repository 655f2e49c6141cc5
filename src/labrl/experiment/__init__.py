"""Trials side by side: grids and searches, on processes of this machine or on a cluster.

    again        the experiment that `-m +resume` names, and the command line that composes it again
    grid         the trials of a grid: every combination of the values; what an edit means for each of them
    sweep        a grid from its words to its end
    search/      a search: its space, its study in a storage that machines share, pruning, confirmation
    experiment   the folder of an experiment, and the queue of a grid's trials
    scheduler    hands trials from a queue to an engine as there is room, and takes what they came to
    local        an engine: processes of this machine, each with cores and GPUs of its own
    clusters     engines: jobs of submitit, tasks of Ray
    hydra_trial  a trial in whatever process: composed as Hydra does; Hydra's own launchers and sweepers
    job          what Hydra calls with the configuration of a trial: run it, or go on with it
    task         a trial that is to be run, and what it came to
    summary      the table that a grid ends with

`labrl.plugins` has what Hydra finds: a sweeper makes the queue, and a launcher makes the engine. A queue
(`Grid`, `Search`, `ConfirmingRuns`) gives tasks and gets their outcomes; an engine knows no queue.
"""
