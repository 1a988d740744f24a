"""`python -m glassbox` is `glassbox`."""

from glassbox.cli.main import main

if __name__ == "__main__":
    main()
