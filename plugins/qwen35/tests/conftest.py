from __future__ import annotations

import os

# Kernels run in Triton's interpreter, which must be said before anything imports triton, as torch does.
os.environ["TRITON_INTERPRET"] = "1"
