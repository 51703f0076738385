"""From a data set and a budget to a decision: which setting to use."""
