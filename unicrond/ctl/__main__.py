"""`python -m unicrond.ctl`: the same as unicronctl."""

from unicrond.ctl.main import main

main()
