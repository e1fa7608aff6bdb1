"""Random faults from a seed, over two replicas of every process, under load."""
