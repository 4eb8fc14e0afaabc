"""Hyperparameter search with Optuna, on the search-space files of W&B's sweeps."""
