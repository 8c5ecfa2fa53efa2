"""`python -m kiln_torch`: what works here."""

import sys

from kiln_torch.doctor import main

sys.exit(main())
