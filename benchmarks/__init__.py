"""Benchmarks: labrl's speed beside Stable-Baselines3 and as a fraction of what the machine allows.

    make bench                                    # everything
    python -m benchmarks ppo-pong ppo-cartpole --repeats 5

Every measurement runs in a process of its own, so that thread settings, allocators and cached kernels of one
do not affect another. The two sides take turns (A B, B A, A B), so that a slow minute of the machine affects
both.
"""
