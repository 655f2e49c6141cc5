"""Speed, measured beside Stable-Baselines3 in one run and against what the machine allows.

    make bench                                    # everything
    python -m benchmarks ppo-pong ppo-cartpole --repeats 5

Every measurement runs in a process of its own, so that no thread setting, warm allocator or cached kernel
of one reaches another. The sides take turns (A B, B A, A B), and a slow minute of the machine falls on both.
"""
