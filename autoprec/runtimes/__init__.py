"""What executes a model when it is measured and deployed: one file a runtime, one contract."""
