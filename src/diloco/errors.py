"""The one exception for input a user can mend."""

from __future__ import annotations


class BadInput(ValueError):
    """An option, file or setting that cannot be used.

    The message is one sentence that names the option, its value and the way out; the command line prints it and exits
    with code 2.
    """
