"""The model-router service: model calls over a chain of candidates, cooldowns and budgets."""
