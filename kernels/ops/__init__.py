"""The operations that GPUs need kernels of our own for: `quantize`, `scaled_mm` and others, a file each.

A file here holds an operation's reference in plain torch, its public function and its registration with
`torch.library`; the file of the same name in `autoprec.kernels.jit` holds its Triton kernels. CPU tensors are
computed by the reference and CUDA tensors (NVIDIA and AMD) by Triton, so that a model means the same on both.
Nothing here imports triton until a kernel is launched.
"""
