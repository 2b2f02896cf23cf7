"""`python -m lab`: the same commands as `unicronctl lab`."""

from lab.cli import app

app(prog_name="lab")
