"""Tasks and the suites they come from."""
