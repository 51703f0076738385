"""The findings: one file each, a declaration of what it says and how its table is made."""
