"""Formats, and the kernels that compute them. Needs torch (and triton where it runs) only."""
