"""`python -m tests.simulation run SEED`: one seed. `... seeds FIRST COUNT`: many, in one process."""

import os
import sys

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings have the same order in each run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    from tests.simulation import seams

    seams.install()
    from tests.simulation.command import main

    main(sys.argv[1:])
