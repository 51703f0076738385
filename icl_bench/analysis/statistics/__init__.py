"""Statistics: grids of predictions, intervals, tests and resampling."""
