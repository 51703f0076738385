"""The findings, one file each: a declaration and the computation of its table."""
