"""Ray actors: thin shells over the library, one file each."""
