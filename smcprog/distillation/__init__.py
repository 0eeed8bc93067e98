"""A draft for any target: fewer layers, or narrower ones, trained on the target's own text.

- `drafts`: the draft before training;
- `texts`: what it learns from, drawn from the target and kept on disk;
- `measures`: the divergences that it is trained on, and those that are reported;
- `training`: the loop, with checkpoints;
- `recipe`: `distill`, which does all of it.
"""

from smcprog.distillation.measures import Fit
from smcprog.distillation.recipe import DistillReport, Settings, distill
from smcprog.distillation.training import Point

__all__ = ["DistillReport", "Fit", "Point", "Settings", "distill"]
