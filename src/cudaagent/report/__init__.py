"""Tables, curves and the page that show a run."""
