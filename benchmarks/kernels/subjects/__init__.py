"""One file an operation of `autoprec.kernels.jit.compiling.OPERATIONS`, of the same name.

Each has `checks(tiny)`, with shapes for Triton's interpreter where `tiny`, and `timings()`, those first that
tell most.
"""
