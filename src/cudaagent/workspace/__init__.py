"""The agent's work directory and what is submitted from it."""
