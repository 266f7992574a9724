"""The library's exceptions.

Three kinds must never be confused: what the user can mend (exit status 2), what the machinery did
wrong (exit status 1, counted, retried), and what a submission did wrong. The last is never an
exception: it is a ``Verdict`` or a ``CompileResult`` and goes to the agent as text.
"""


class CudaAgentError(Exception):
    """Base of the library's exceptions."""


class UserError(CudaAgentError):
    """Unusable input; the message is one line and says what to do next. Exit status 2."""


class TaskError(UserError):
    """A task that cannot be judged, with its ``task-*`` failure code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class InfrastructureError(CudaAgentError):
    """A sandbox, runner or device failed; the work can be retried elsewhere. Exit status 1."""
