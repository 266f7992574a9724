"""Task synthesis: compose operators, filter by execution, deduplicate."""
