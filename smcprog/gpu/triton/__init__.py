"""The CUDA kernels, each with a plain PyTorch twin that it is tested against.

A function and its ``_twin`` take the same arguments and return the same. Import these modules
where a CUDA device is used and nowhere else: they need Triton.
"""
