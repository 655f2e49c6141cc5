"""Experiments: grids and searches, on processes of this machine or on a cluster.

    again        the experiment that `-m +resume` names, and the command line that composes it again
    grid         the trials of a grid: every combination of the values; the effect of edits on each of them
    sweep        a grid from its overrides to its end, and the queue of its trials
    search/      a search: its space, its study in a storage that machines share, pruning, confirmation
    experiment   the folder of an experiment while a command holds it
    scheduler    trials to run and their outcomes; passes them from a queue to a launcher while there is room
    launcher     what runs trials; the launchers and sweepers of others
    local        a launcher: processes of this machine, each with its own cores and GPUs
    clusters     launchers: jobs of submitit, tasks of Ray
    job          a trial as Hydra runs it, in any process: composed, then run or continued
    summary      the final table of a grid

`labrl.plugins` has the sweepers that Hydra finds. A sweeper makes the queue (`Grid`, `Search`,
`ConfirmingRuns`), which gives tasks and gets their outcomes; a launcher knows no queue.
"""
