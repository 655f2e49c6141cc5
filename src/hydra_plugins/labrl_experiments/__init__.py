"""labrl's sweeper and launchers, where Hydra looks for them. What they do lies in labrl.lab."""
