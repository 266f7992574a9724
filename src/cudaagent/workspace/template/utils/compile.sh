#!/bin/sh
# Builds kernels/ and prints the compiler's messages.
exec python3 -I -S "$(dirname "$0")/compile.py"
