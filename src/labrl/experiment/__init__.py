"""Experiments: grids and searches, on processes of this machine or on a cluster.

    again        the experiment that `-m +resume` names, and the command line that composes it again
    grid         the trials of a grid: every combination of the values; the effect of edits on each of them
    sweep        a grid from its overrides to its end, and the queue of its trials
    search/      a search: its space, its study in a storage that machines share, pruning, confirmation
    experiment   the folder of an experiment while a command holds it
    scheduler    passes trials from a queue to an engine while there is room, and collects their outcomes
    local        an engine: processes of this machine, each with its own cores and GPUs
    clusters     engines: jobs of submitit, tasks of Ray
    hydra_trial  a trial in any process, composed as Hydra does; Hydra's own launchers and sweepers
    job          what Hydra calls with the configuration of a trial: run it, or continue it
    task         a trial to run, and its outcome
    summary      the final table of a grid

`labrl.plugins` has what Hydra finds: a sweeper makes the queue, and a launcher makes the engine. A queue
(`Grid`, `Search`, `ConfirmingRuns`) gives tasks and gets their outcomes; an engine knows no queue.
"""
