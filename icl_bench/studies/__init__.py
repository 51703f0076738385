"""Studies: many tasks, models and settings in one file, run as cells of one folder."""
