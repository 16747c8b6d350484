"""`python -m headrace_command`."""

import sys

from headrace_command.main import main

sys.exit(main())
