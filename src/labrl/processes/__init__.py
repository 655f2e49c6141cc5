"""What every process of labrl needs: signals, standard streams, secrets, parts of the user's script."""
