"""Compares ModelNew with Model on fresh inputs and weights."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from gateway_client import ask

sys.exit(ask("verify"))
