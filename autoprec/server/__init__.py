"""The store over HTTP: plans for trainers that do not have this package, and jobs."""
