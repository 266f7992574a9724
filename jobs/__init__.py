"""What `ray job submit` runs.

Ray reads these variables when it is imported, so they are set here, before any job imports it.
"""

import os

# Ray 2.60 turns token authentication on by itself after the first local cluster; said explicitly,
# every process of ours agrees on it.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Workers of a local cluster are not niced: the judge's runners are their children, and a niced
# runner waits for the raylet.
os.environ.setdefault("RAY_worker_niceness", "0")
# Threads that spin while they wait slow two cores down threefold.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
