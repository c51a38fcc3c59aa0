"""The searchers: the RLlib agent, the baselines, and the portfolio that runs them together."""
