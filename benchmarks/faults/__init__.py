"""What `benchmarks.chaos` and the fault tests share: a world whose rows are numbered, a learner that
records what it trains on, a network that breaks when told to, and the proof that nothing was lost."""
