"""``python -m fpemu``: the same as the command ``fpemu``."""

import sys

if __name__ == "__main__":  # worker processes import this module again under another name
    from fpemu.cli import main

    sys.exit(main())
