"""Builds kernels/ and prints the compiler's messages."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from gateway_client import ask

sys.exit(ask("compile"))
