"""The figures of the project, each from one command: `python -m benchmarks [NAME ...]`."""
