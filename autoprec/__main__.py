"""Entry point of the `autoprec` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        from autoprec.cli import app
    except ModuleNotFoundError as error:
        sys.exit(
            _say(f"{error.name} is not installed; the command line needs: pip install 'autoprec[tune]'", 2)
        )
    from autoprec.errors import AutoPrecError, UserError

    try:
        app()
    except UserError as error:
        sys.exit(_say(str(error), 2))
    except AutoPrecError as error:
        sys.exit(_say(str(error), 1))


def _say(message: str, code: int) -> int:
    sys.stderr.write(f"autoprec: {message}\n")
    return code


if __name__ == "__main__":
    main()
