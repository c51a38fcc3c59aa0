"""The Triton kernels: a file an operation of `autoprec.kernels.ops`, with its launcher and its cases.

A case is one specialisation that `python -m autoprec.kernels.jit.compiling` compiles ahead of time, for
processors that need not be here. With `TRITON_INTERPRET=1` the launchers run on CPU tensors.
"""
