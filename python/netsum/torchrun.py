"""torchrun, to which an end by a signal is no error: `python -m netsum.torchrun`, with torchrun's arguments."""

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main

if __name__ == "__main__":
    try:
        main()
    except SignalException as ended:
        # The workers have been ended; a traceback would say nothing more.
        sys.exit(128 + ended.sigval)
