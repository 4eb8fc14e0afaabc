"""The one error that is the user's to mend: shown as a single line, without a traceback."""


class UserError(Exception):
    """Bad input. The message says what is wrong, where (file, key, row), and what to do."""
