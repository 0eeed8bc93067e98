"""Tiny tensors gain nothing from threads, and lose much where a core is busy with another task."""

import torch

torch.set_num_threads(1)
