"""The search for scikit-learn's people."""
