"""What ends a run in one line, without a traceback."""

import signal


def first_line(error: BaseException) -> str:
    """What an error says, without what follows its first line."""
    return str(error).partition("\n")[0]


class UserError(Exception):
    """Bad input. The message says what is wrong, where (file, key, row), and what to do."""


class ElsewhereError(UserError):
    """Another process of the training has failed. The message says of what."""


class Interrupted(Exception):  # noqa: N818
    """Training was told to stop by a signal, and has saved."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}, {what}")
        self.exit_code = 128 + number
