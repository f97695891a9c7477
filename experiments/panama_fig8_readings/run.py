"""Makes the figure in `figure.py`: `make fig FIG=panama_fig8`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from figures import main

if __name__ == "__main__":
    main(Path(__file__).resolve().parent.name)
