"""The training methods of --method."""
