"""What stored predictions say: analysis reads predictions and nothing else."""
