"""What else the same examples could be used for: fine-tuning, a probe, nearest neighbours.

Bertsch et al. 2025, section 3.3 and appendix E. Every method learns from the first k examples of
the draw that in-context learning puts into the prompt, and answers the same test rows.
"""

from __future__ import annotations
