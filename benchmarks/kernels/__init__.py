"""The kernels on a GPU: checked, timed against torch, and told to other machines as a device profile.

Needs torch and triton, and nothing of AutoPrec but `autoprec.kernels`: `python benchmarks/kernels/run.py`.
`docs/kernels.md` says what it prints and writes.
"""
