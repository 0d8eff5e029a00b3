"""`python -m strands_sglang.cli`: same as `strands-sglang`."""

import sys

from strands_sglang.cli.main import main

sys.exit(main())
