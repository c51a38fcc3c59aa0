"""Entry point of the `autoprec` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        from autoprec.cli import app
    except ModuleNotFoundError as error:
        print(
            f"autoprec: {error.name} is not installed; the command line needs: pip install 'autoprec[tune]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    from autoprec.errors import AutoPrecError, UserError

    try:
        app()
    except UserError as error:
        print(f"autoprec: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except AutoPrecError as error:
        print(f"autoprec: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
