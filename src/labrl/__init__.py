"""labrl: a laboratory for deep reinforcement learning."""
