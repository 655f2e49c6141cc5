"""What is done with a trained policy: load, play, replay and export."""
