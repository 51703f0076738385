"""Studies: many tasks, models and settings in one file, carried out as cells of one folder."""
