"""Where untrusted processes run."""
