"""Other uses of the same examples: fine-tuning, a probe, nearest neighbours.

Bertsch et al. 2025, section 3.3 and appendix E. Every method trains on the first k examples of a draw,
which in-context learning puts into the prompt, and answers the same test rows.
"""
