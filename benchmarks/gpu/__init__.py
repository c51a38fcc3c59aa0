"""What is measured where there is a GPU."""
