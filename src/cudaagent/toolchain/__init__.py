"""Sources to a loadable extension."""
