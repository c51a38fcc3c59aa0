"""Pages over the store, and its metrics. The page of a single job is written by `autoprec.report`."""
